//! Counts tests in the output of test programs.

use std::ops::AddAssign;

/// How many tests passed, failed, and were left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub passed: usize,
    pub failed: usize,
    pub ignored: usize,
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Count) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

impl Count {
    /// The sum of all lines "test result: ok. 3 passed; 0 failed; 1 ignored; ..." of an output.
    pub fn of(output: &str) -> Count {
        let mut sum = Count::default();
        for line in output.lines() {
            let Some((_, result)) = line.trim_start().split_once("test result: ") else { continue };
            let number = |word: &str| {
                let before = result.split(';').find_map(|part| part.trim().strip_suffix(word))?;
                before.trim().rsplit(' ').next()?.parse().ok()
            };
            sum += Count {
                passed: number("passed").unwrap_or(0),
                failed: number("failed").unwrap_or(0),
                ignored: number("ignored").unwrap_or(0),
            };
        }
        sum
    }

    /// The counts in words, without those that are 0.
    pub fn words(self) -> String {
        let parts = [(self.passed, "passed"), (self.failed, "failed"), (self.ignored, "ignored")];
        let parts: Vec<String> = parts.iter().filter(|(n, _)| *n > 0).map(|(n, word)| format!("{n} {word}")).collect();
        if parts.is_empty() { "no tests".into() } else { parts.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches results of a test program that are not counted, or counted twice.
    #[test]
    fn results_are_summed() {
        let output = "running 3 tests\n\
            test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.11s\n\
            test result: FAILED. 116 passed; 12 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(Count::of(output), Count { passed: 119, failed: 12, ignored: 1 });
        assert_eq!(Count::of("nothing"), Count::default());
        assert_eq!(Count::of(output).words(), "119 passed, 12 failed, 1 ignored");
    }
}

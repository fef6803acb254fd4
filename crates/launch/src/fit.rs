//! Breaks text into lines that fit the terminal.

/// Breaks lines at blanks where they have more than `width` columns. The following lines are aligned with the last part
/// of the line after a gap of two blanks, if that begins in the first three fifths of the width; otherwise with the
/// beginning of the line, or of the text of a list item. A word that is longer than a line, such as a path, is not
/// broken.
pub fn fit(text: &str, width: usize) -> String {
    text.split_inclusive('\n')
        .map(|line| if columns(line) > width { broken(line, width) } else { line.to_owned() })
        .collect()
}

/// Shortens the text to `width` columns by leaving out the middle: the end of a path says more than its start.
pub fn shortened(text: &str, width: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= width || width == 0 {
        return text.to_owned();
    }
    let begin = (width - 1) / 3;
    letters[..begin].iter().chain(&['…']).chain(&letters[letters.len() + 1 + begin - width..]).collect()
}

fn broken(line: &str, width: usize) -> String {
    let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
    let indent = " ".repeat(indent(line, width));
    let mut out = line[..line.len() - line.trim_start().len()].to_owned();
    let mut used = columns(&out);
    let mut first = true;
    for word in line.trim_start().split_inclusive(' ') {
        if !first && used + columns(word.trim_end()) > width {
            out.truncate(out.trim_end().len());
            out.push('\n');
            out.push_str(&indent);
            used = indent.len();
        }
        out.push_str(word);
        used += columns(word);
        first = false;
    }
    out + end
}

/// The column in which the lines after the first begin.
fn indent(line: &str, width: usize) -> usize {
    let lead = line.len() - line.trim_start().len();
    let item = if line[lead..].starts_with("- ") || line[lead..].starts_with("# ") { 2 } else { 0 };
    let gaps = line[lead..].match_indices("  ").map(|(at, _)| {
        let rest = line[lead + at..].trim_start();
        columns(&line[..line.len() - rest.len()])
    });
    gaps.filter(|&column| column <= width * 3 / 5).last().unwrap_or(lead + item)
}

/// The width of a text; colour codes have none.
fn columns(text: &str) -> usize {
    let mut escape = false;
    let visible = |letter: &char| match *letter {
        '\x1b' => {
            escape = true;
            false
        }
        'm' if escape => {
            escape = false;
            false
        }
        letter => !escape && letter != '\n',
    };
    text.chars().filter(visible).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches lines that a terminal breaks, descriptions that continue below their option, and words that are lost.
    #[test]
    fn lines_are_broken_at_blanks() {
        let help = "  -o, --output <FILE>  Write to FILE; `-` is standard output\n  -h\n";
        assert_eq!(
            fit(help, 45),
            "  -o, --output <FILE>  Write to FILE; `-` is\n                       standard output\n  -h\n"
        );
        assert_eq!(fit("- met: neap has 3 of the 4\n", 14), "- met: neap\n  has 3 of the\n  4\n");
        assert_eq!(fit("    one two three", 11), "    one two\n    three");
        assert_eq!(fit("  a command with a long\n", 9), "  a\n  command\n  with a\n  long\n");
        assert_eq!(fit("short\nlines\n", 5), "short\nlines\n");
    }

    /// Catches paths and commands that can no longer be copied, and an empty line before one.
    #[test]
    fn long_words_stay_whole() {
        assert_eq!(fit("/a/path/that/is/long of it", 10), "/a/path/that/is/long\nof it");
        assert_eq!(fit("of /a/path/that/is/long", 10), "of\n/a/path/that/is/long");
    }

    /// Catches names that are longer than their room, and ends that are lost.
    #[test]
    fn long_names_lose_their_middle() {
        assert_eq!(shortened("/usr/lib/libpython3.so", 22), "/usr/lib/libpython3.so");
        assert_eq!(shortened("/usr/lib/libpython3.so", 12), "/us…thon3.so");
    }

    /// Catches colour codes that are counted as text.
    #[test]
    fn colours_take_no_room() {
        let line = "\x1b[32mmet\x1b[0m: 3 of 4\n";
        assert_eq!((fit(line, 11), columns(line)), (line.to_owned(), 11));
    }
}

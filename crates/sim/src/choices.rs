//! The choices of an exhaustive search, from one run to the next.

/// Choices of an exhaustive search: at each place, the one taken and the number of options.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    taken: Vec<(u16, u16)>,
    at: usize,
    /// Limit on the switches away from a thread that could go on.
    pub bound: u32,
    /// Switches of this run so far.
    pub switches: u32,
}

impl Choices {
    /// A new search.
    pub fn new(bound: u32) -> Self {
        Choices { bound, ..Choices::default() }
    }

    /// The next choice, one of `of`.
    pub fn choose(&mut self, of: usize) -> usize {
        if self.at == self.taken.len() {
            self.taken.push((0, of as u16));
        }
        let (taken, options) = self.taken[self.at];
        assert_eq!(usize::from(options), of, "a run did not repeat the one before");
        self.at += 1;
        usize::from(taken)
    }

    /// Advances to the next run; false when all were made.
    pub fn advance(&mut self) -> bool {
        (self.at, self.switches) = (0, 0);
        while let Some((taken, options)) = self.taken.pop() {
            if taken + 1 < options {
                self.taken.push((taken + 1, options));
                return true;
            }
        }
        false
    }
}

//! How much time has passed, where the clock may go back.

/// Milliseconds from `since` until `now`, two times of `Os::clock`. The clock goes back in a process that is restored
/// from a checkpoint, and in a child with another time namespace than its parent. Then that is a long time: what waits
/// for the end of an interval goes on at once, and the next interval begins at the new time.
pub fn passed(now: u64, since: u64) -> u64 {
    now.checked_sub(since).unwrap_or(u64::MAX)
}

/// Some milliseconds from a time on.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    since: u64,
    length: u64,
}

impl Term {
    /// `length` milliseconds from `now` on.
    pub fn new(now: u64, length: u64) -> Term {
        Term { since: now, length }
    }

    /// Whether they have passed.
    pub fn is_over(self, now: u64) -> bool {
        passed(now, self.since) >= self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a clock that goes back and makes an interval last until it has caught up.
    #[test]
    fn clocks_may_go_back() {
        assert_eq!(
            [(1000, 1000), (1200, 1000), (999, 1000)].map(|(now, since)| passed(now, since)),
            [0, 200, u64::MAX]
        );
    }
}

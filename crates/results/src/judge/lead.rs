//! The sentence that leads an experiment.

use crate::{Experiment, Kind, Verdict};

/// The result of an experiment in one sentence: in how many of its ranked figures neap leads or ties, with the first of
/// them, or with the first shortfall. Without a rank, and with several goals of which one is missed: how many goals are
/// met, and the first that is missed. Otherwise the first verdict with an answer; `None` if there is none.
fn lead(verdicts: &[Verdict]) -> Option<String> {
    let judged: Vec<&Verdict> = verdicts.iter().filter(|verdict| verdict.holds.is_some()).collect();
    let ranks: Vec<&Verdict> = judged.iter().copied().filter(|verdict| verdict.kind == Kind::Rank).collect();
    let behind: Vec<&Verdict> = ranks.iter().copied().filter(|verdict| verdict.holds == Some(false)).collect();
    let goals: Vec<&Verdict> = judged.iter().copied().filter(|verdict| verdict.kind == Kind::Target).collect();
    let missed: Vec<&Verdict> = goals.iter().copied().filter(|goal| goal.holds == Some(false)).collect();
    if let (true, all @ 2.., [first, ..]) = (ranks.is_empty(), goals.len(), &missed[..]) {
        return Some(format!("neap meets {} of {all} goals. Missed: {}.", all - missed.len(), first.text));
    }
    let first = &behind.first().or(ranks.first()).or(judged.first())?.text;
    Some(match (ranks.len(), behind.len()) {
        (0 | 1, _) => format!("{first}."),
        (2, 0) => format!("neap leads or ties in both figures; {first}."),
        (all, 0) => format!("neap leads or ties in all {all} figures; {first}."),
        (all, missed) if missed == all => format!("neap leads in none of {all} figures; {first}."),
        (all, missed) => format!("neap leads or ties in {} of {all} figures. Behind on {first}.", all - missed),
    })
}

impl Experiment {
    /// Its result in one sentence.
    pub fn lead(&self) -> Option<String> {
        lead(&self.verdicts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(text: &str, holds: Option<bool>, kind: Kind) -> Verdict {
        Verdict { text: text.into(), holds, must_hold: false, kind }
    }

    // Would catch a shortfall that a first place hides, and a figure without data that counts as one.
    #[test]
    fn a_shortfall_leads() {
        let first = verdict("time: neap is first of 3", Some(true), Kind::Rank);
        let second = verdict("RSS: neap is second of 3", Some(false), Kind::Rank);
        let open = verdict("peak: neap was not run", None, Kind::Rank);
        let of = |verdicts: &[&Verdict]| lead(&verdicts.iter().copied().cloned().collect::<Vec<_>>());
        assert_eq!(of(&[&first, &open]).unwrap(), "time: neap is first of 3.");
        let both = "neap leads or ties in both figures; time: neap is first of 3.";
        assert_eq!(of(&[&first, &first]).unwrap(), both);
        assert!(of(&[&first; 3]).unwrap().contains("in all 3 figures; time: "));
        let some = "neap leads or ties in 1 of 2 figures. Behind on RSS: neap is second of 3.";
        assert_eq!(of(&[&first, &second, &open]).unwrap(), some);
        let none = "neap leads in none of 2 figures; RSS: neap is second of 3.";
        assert_eq!(of(&[&second, &second]).unwrap(), none);
        let two = of(&[&first, &second, &second]).unwrap();
        assert!(two.ends_with("in 1 of 3 figures. Behind on RSS: neap is second of 3."), "{two}");
    }

    // Would catch a goal that is met and hides those that are missed.
    #[test]
    fn without_a_rank_the_missed_goals_lead() {
        let met = verdict("time: 0.9 times", Some(true), Kind::Target);
        let missed = verdict("peak: 1.4 times", Some(false), Kind::Target);
        let two = lead(&[met.clone(), missed.clone()]).unwrap();
        assert_eq!(two, "neap meets 1 of 2 goals. Missed: peak: 1.4 times.");
        assert_eq!(lead(&[missed]).unwrap(), "peak: 1.4 times.");
        assert_eq!(lead(&[met]).unwrap(), "time: 0.9 times.");
    }

    // Would catch an experiment without a rank that has no sentence, and one without data that has.
    #[test]
    fn without_a_rank_the_first_finding_leads() {
        let finding = verdict("glibc grows", Some(true), Kind::Finding);
        assert_eq!(lead(&[verdict("no data", None, Kind::Finding), finding]).unwrap(), "glibc grows.");
        assert_eq!(lead(&[verdict("no data", None, Kind::Rank)]), None);
        assert_eq!(lead(&[verdict("neap adds 7", None, Kind::Figure)]), None);
    }
}

//! The schema of a run.
//!
//! As JSON it is one object whose member `schema` is [`SCHEMA`]. The rows may be in it or, as CSV, beside it. A reader
//! skips unknown members, so members may be added without a new number. A member that changes its meaning or is removed
//! needs a new number.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::SCHEMA;
use crate::{Better, Chart, ReadError, Row, Table};

/// One run of the lab.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`SCHEMA`].
    pub schema: u64,
    /// The version of neap that ran it.
    pub neap: String,
    /// The commit, where the lab was run from the project's own tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The command that repeats it.
    pub command: String,
    /// Start, UTC, as `2026-01-31T12:00:00Z`.
    pub started: String,
    /// End; none for a run that was interrupted.
    #[serde(default)]
    pub ended: Option<String>,
    /// Less work than the full experiments: findings may hold, times are not comparable with those of a full run.
    pub quick: bool,
    /// Requested rounds; without a request, the most that one of the experiments has.
    pub rounds: u32,
    /// Where it was run.
    pub machine: Machine,
    /// The measured allocators, in the order of tables and legends.
    pub allocators: Vec<Allocator>,
    /// How quiet the machine was.
    #[serde(default)]
    pub noise: Noise,
    /// What was run, in the order of the report.
    pub experiments: Vec<Experiment>,
    /// Remarks on the run as a whole, as markdown paragraphs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// All values. Empty in a file whose rows are beside it as CSV.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<Row>,
}

/// The machine and its settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Processor model.
    pub cpu: String,
    /// Processors that the programs could use.
    pub cores: u32,
    /// Memory of the machine.
    pub memory_mib: u64,
    /// Kernel release.
    pub kernel: String,
    /// The C library.
    pub libc: String,
    /// `/sys/kernel/mm/transparent_hugepage/enabled`, the chosen word in brackets.
    pub transparent_hugepage: String,
    /// `vm.overcommit_memory`.
    pub overcommit_memory: String,
    /// Frequency governor; none where the machine has none to set.
    pub governor: Option<String>,
    /// The hypervisor, `yes` where it is not known; none on bare metal.
    pub virtualised: Option<String>,
    /// Swap space of the machine.
    pub swap_mib: u64,
    /// Load averages before the run.
    pub load_before: String,
    /// Load averages after it.
    pub load_after: String,
    /// Compilers of the programs.
    pub compilers: Vec<String>,
}

/// One allocator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Allocator {
    /// Its name on the command line and in the tables.
    pub name: String,
    /// The allocator that it is a variant of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Its version.
    pub version: String,
    /// Where its source or library came from.
    pub source: String,
    /// How it was built.
    pub commands: Vec<String>,
    /// With which compiler.
    pub compiler: String,
    /// Further environment that it was measured with.
    pub env: BTreeMap<String, String>,
}

/// How quiet the machine was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Noise {
    /// Whether all checks were within their limits; none where nothing was checked.
    pub quiet: Option<bool>,
    /// What was checked.
    pub checks: Vec<NoiseCheck>,
    /// Rounds that were run again because the machine was busy.
    pub repeats: Vec<Repeat>,
    /// Rounds that count although the machine was busy: they had been run again already, or there was no time for that.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub doubtful: Vec<Repeat>,
}

/// One check of the machine's quiet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NoiseCheck {
    /// What was measured: `time taken by the host`, for example.
    pub name: String,
    /// The measured value.
    pub value: f64,
    /// In which unit.
    pub unit: String,
    /// The greatest value that counts as quiet.
    pub limit: f64,
}

/// A round during which the machine was busy with other work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Repeat {
    /// Which experiment.
    pub experiment: String,
    /// Which case; empty for all of it.
    pub case: String,
    /// Why: what was seen.
    pub reason: String,
}

/// One experiment: its question, what was published, how it was run and shown, its verdicts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: String,
    /// Its title.
    pub title: String,
    /// What it asks, in one sentence.
    pub question: String,
    /// What its programs do.
    pub about: String,
    /// What was published before.
    pub claims: Vec<Claim>,
    /// The command that repeats it.
    pub command: String,
    /// How it is run.
    pub cases: Vec<Case>,
    /// The metrics of its programs. A metric that is not listed is compared by its unit (see [`Better::of_unit`]).
    pub metrics: Vec<Metric>,
    /// How it is drawn.
    pub charts: Vec<Chart>,
    /// Its tables.
    pub tables: Vec<Table>,
    /// Its verdicts.
    pub verdicts: Vec<Verdict>,
    /// Output of its programs other than figures, shown as it is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listings: Vec<Listing>,
    /// Remarks, as markdown paragraphs.
    pub notes: Vec<String>,
    /// Why it was not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// Seconds that it took; none where it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
}

/// Output of a program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Listing {
    /// What it is of.
    pub title: String,
    /// Its lines.
    pub text: String,
}

/// Something that was published.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// What was found, in a sentence or two.
    pub text: String,
    /// Where it was published: author and title, or kind of text and subject.
    pub source: String,
    /// When.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub year: Option<u32>,
    /// Its figures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<ClaimFigure>,
}

/// A figure that was published.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClaimFigure {
    /// What it is of.
    pub label: String,
    /// The figure, as it was published: `1.4 MB for six rounds, then 3.4 GB`.
    pub value: String,
}

/// One way of running an experiment's program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Its name, unique within the experiment.
    pub name: String,
    /// What makes it different from the others.
    #[serde(default)]
    pub params: BTreeMap<String, Param>,
    /// The program and its arguments, for a shell.
    #[serde(default)]
    pub command: String,
}

/// The value of a parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Param {
    /// A number.
    Number(f64),
    /// A word.
    Text(String),
}

/// A metric that programs print.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// Its name in the rows.
    pub name: String,
    /// Its title in texts.
    pub title: String,
    /// Whether less or more is better.
    #[serde(default)]
    pub better: Better,
}

/// One sentence computed from the rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The sentence, with the figures.
    pub text: String,
    /// Whether its condition holds; none if the data have no answer, or if it has no condition.
    pub holds: Option<bool>,
    /// Whether CI fails if it does not hold.
    pub must_hold: bool,
    /// What it is about.
    #[serde(default)]
    pub kind: Kind,
}

/// What a verdict is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Whether a published finding was reproduced.
    Finding,
    /// neap's place among the allocators.
    Rank,
    /// A goal that neap has.
    Target,
    /// A figure without a goal.
    #[default]
    #[serde(rename = "told")]
    Figure,
}

/// The paragraphs of remarks that were written by hand, without their title, for [`Run::notes`].
pub fn notes_from(text: &str) -> Vec<String> {
    let paragraphs = text.split("\n\n").map(str::trim).filter(|paragraph| !paragraph.is_empty());
    paragraphs.filter(|paragraph| !paragraph.starts_with("# ")).map(String::from).collect()
}

impl Run {
    /// Reads JSON. The caller puts rows that are beside it as CSV into [`Run::rows`].
    pub fn from_json(text: &str) -> Result<Run, ReadError> {
        /// Read first: a newer schema need not have the other members.
        #[derive(Deserialize)]
        struct Head {
            schema: Option<serde_json::Value>,
            neap: Option<serde_json::Value>,
        }
        let head: Head = serde_json::from_str(text).map_err(ReadError::Json)?;
        let schema = head.schema.ok_or(ReadError::NoSchema)?;
        match schema.as_u64() {
            Some(SCHEMA) => serde_json::from_str(text).map_err(ReadError::Json),
            Some(found) if found > SCHEMA => {
                let neap = head.neap.and_then(|neap| neap.as_str().map(String::from));
                Err(ReadError::Newer { found, neap })
            }
            _ => Err(ReadError::Unknown(schema.to_string())),
        }
    }

    /// The run as JSON, with the rows in it.
    pub fn to_json(&self) -> String {
        // All keys of maps are text; nothing else could fail.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// The run as JSON without the rows, for a file beside their CSV.
    pub fn to_json_without_rows(&self) -> String {
        Run { rows: Vec::new(), ..self.clone() }.to_json()
    }

    /// [`Run::to_json_without_rows`] in one line, for a file that is kept.
    pub fn to_short_json(&self) -> String {
        serde_json::to_string(&Run { rows: Vec::new(), ..self.clone() }).unwrap_or_default() + "\n"
    }

    /// The experiment called `name`.
    pub fn experiment(&self, name: &str) -> Option<&Experiment> {
        self.experiments.iter().find(|experiment| experiment.name == name)
    }

    /// The verdicts that must hold and do not, with their experiments. A verdict without an answer counts as not
    /// holding.
    pub fn broken(&self) -> Vec<(&Experiment, &Verdict)> {
        let all = self.experiments.iter().flat_map(|one| one.verdicts.iter().map(move |verdict| (one, verdict)));
        all.filter(|(_, verdict)| verdict.must_hold && verdict.holds != Some(true)).collect()
    }
}

impl Experiment {
    /// Its title; its name where it has none.
    pub fn heading(&self) -> &str {
        if self.title.is_empty() { &self.name } else { &self.title }
    }

    /// Whether less or more of a metric is better.
    pub fn better(&self, metric: &str, unit: &str) -> Better {
        let listed = self.metrics.iter().find(|one| one.name == metric);
        listed.map_or_else(|| Better::of_unit(unit), |one| one.better)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Axis, ChartKind, Column, Mark, Place, Point, Series};

    /// A run in which every member has something.
    fn full() -> Run {
        let chart = Chart {
            name: "sizes".into(),
            title: "µs".into(),
            kind: ChartKind::Dots,
            x: Axis { label: "size".into(), unit: "B".into(), log: true },
            y: Axis { label: "time".into(), unit: "us".into(), log: true },
            better: Better::Less,
            series: vec![Series {
                label: "touched".into(),
                points: vec![Point::at(65536.0, "a", "m"), Point::named("x", "a", "m")],
            }],
            allocators: vec!["neap".into()],
            marks: vec![Mark { label: "published".into(), value: 3.5 }],
            places: vec![Place { label: "TLB reach".into(), case: "a".into(), metric: "reach".into() }],
        };
        let figures = vec![ClaimFigure { label: "after".into(), value: "3.4 GB".into() }];
        let claim = Claim { text: "it grows".into(), source: "an article".into(), year: Some(2012), figures };
        let params = [("size".into(), Param::Number(65536.0)), ("mode".into(), Param::Text("once".into()))];
        let case = Case { name: "a".into(), params: params.into(), command: "calloc --size 65536".into() };
        let experiment = Experiment {
            name: "calloc".into(),
            claims: vec![claim],
            cases: vec![case],
            metrics: vec![Metric { name: "m".into(), title: "time".into(), better: Better::Less }],
            charts: vec![chart],
            tables: vec![Table { title: "t".into(), columns: vec![Column::new("l", "a", "m")] }],
            verdicts: vec![Verdict { text: "so".into(), holds: Some(true), must_hold: true, kind: Kind::Finding }],
            listings: vec![Listing { title: "of one run".into(), text: "1 0x1000 C\n".into() }],
            skipped: Some("offline".into()),
            ..Experiment::default()
        };
        let row = Row { experiment: "calloc".into(), status: "ok".into(), value: 0.1, ..Row::default() };
        Run {
            schema: SCHEMA,
            neap: "0.1.0".into(),
            commit: Some("abc".into()),
            machine: Machine { cores: 2, virtualised: Some("kvm".into()), ..Machine::default() },
            allocators: vec![Allocator { name: "neap".into(), base: Some("b".into()), ..Allocator::default() }],
            noise: Noise {
                quiet: Some(false),
                checks: vec![NoiseCheck::default()],
                repeats: vec![Repeat::default()],
                doubtful: vec![Repeat::default()],
            },
            experiments: vec![experiment],
            rows: vec![row],
            ..Run::default()
        }
    }

    // Would catch a member that is written and not read, or the other way round.
    #[test]
    fn a_run_survives_json() {
        let run = full();
        assert_eq!(Run::from_json(&run.to_json()).unwrap(), run);
        let head = Run::from_json(&run.to_json_without_rows()).unwrap();
        assert_eq!(head, Run { rows: Vec::new(), ..run });
    }

    // Would catch a newer schema that is read as if it were this one, or refused without a remedy.
    #[test]
    fn a_newer_schema_is_refused() {
        let text = "{\"schema\": 2, \"neap\": \"0.9.0\", \"machine\": \"elsewhere\"}";
        let error = Run::from_json(text).unwrap_err().to_string();
        let wanted = "the run has schema 2, written by neap 0.9.0; this neap reads schema 1: show it with a newer neap";
        assert_eq!(error, wanted);
    }

    // Would catch a file of another kind that reads as an empty run.
    #[test]
    fn other_texts_are_refused() {
        assert!(matches!(Run::from_json("{\"date\": \"x\"}"), Err(ReadError::NoSchema)));
        assert!(matches!(Run::from_json("{\"schema\": \"one\"}"), Err(ReadError::Unknown(_))));
        assert!(matches!(Run::from_json("{\"schema\": 1}"), Err(ReadError::Json(_))));
        assert!(matches!(Run::from_json("hello"), Err(ReadError::Json(_))));
    }

    // Would catch a member from a later version of schema 1 that makes older readers fail.
    #[test]
    fn unknown_members_are_passed_over() {
        let text = full().to_json().replacen('{', "{\"colour\": \"blue\",", 1);
        assert_eq!(Run::from_json(&text).unwrap(), full());
    }

    // Would catch a verdict without data that passes as one that holds.
    #[test]
    fn broken_verdicts_are_found() {
        let verdict = |holds, must_hold| Verdict { holds, must_hold, ..Verdict::default() };
        let verdicts = [(Some(true), true), (Some(false), true), (None, true), (Some(false), false), (None, false)];
        let verdicts = verdicts.map(|(holds, must_hold)| verdict(holds, must_hold)).into();
        let run = Run { experiments: vec![Experiment { verdicts, ..Experiment::default() }], ..Run::default() };
        let broken: Vec<_> = run.broken().iter().map(|(_, verdict)| verdict.holds).collect();
        assert_eq!(broken, [Some(false), None]);
    }

    // Would catch a rate whose fall counts as a gain.
    #[test]
    fn units_tell_what_is_better() {
        assert_eq!(Better::of_unit("1/s"), Better::More);
        assert_eq!(Better::of_unit("MiB/s"), Better::More);
        assert_eq!(Better::of_unit("us"), Better::Less);
        assert_eq!(Better::of_unit("count"), Better::Neither);
    }
}

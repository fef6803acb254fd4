//! The rows: one value of one metric in one round. As CSV they can be appended to while a run goes on.

use serde::{Deserialize, Serialize};

use crate::ReadError;

/// One value from one execution of a case. An execution that failed has one row, with an empty `metric`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Which experiment.
    pub experiment: String,
    /// Which of its cases.
    pub case: String,
    /// Under which allocator.
    pub allocator: String,
    /// Round, from 1; ratios are taken within a round.
    pub round: u32,
    /// Place within the round, from 1.
    pub turn: u32,
    /// `ok`, `exit:N`, `signal:N`, `timeout`, or a sentence that says why there is no figure. `skipped: WHY` is not a
    /// failure.
    pub status: String,
    /// Name of the figure.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// The figure.
    pub value: f64,
}

impl Row {
    /// Whether it succeeded.
    pub fn is_ok(&self) -> bool {
        self.status == "ok"
    }
}

/// Reads rows; the first line has the names of the columns.
pub fn rows_from_csv(text: &str) -> Result<Vec<Row>, ReadError> {
    csv::Reader::from_reader(text.as_bytes()).deserialize().collect::<Result<_, _>>().map_err(ReadError::Csv)
}

/// Writes rows, with the names of the columns in front where `head` is set.
pub fn rows_to_csv(rows: &[Row], head: bool) -> String {
    let mut csv = csv::WriterBuilder::new().has_headers(head).from_writer(Vec::new());
    for row in rows {
        // Writing to memory cannot fail, and a row has no nested lists.
        let _ = csv.serialize(row);
    }
    csv.into_inner().ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch a column of the CSV that is written and not read, and quotes that are lost.
    #[test]
    fn rows_survive_the_csv() {
        let row = Row {
            experiment: "ebizzy".into(),
            case: "2 threads, traced".into(),
            allocator: "neap".into(),
            round: 3,
            turn: 1,
            status: "ok".into(),
            metric: "rate".into(),
            unit: "1/s".into(),
            value: 0.25,
        };
        let failed = Row { status: "skipped: no \"strace\"".into(), ..Row::default() };
        let text = rows_to_csv(std::slice::from_ref(&row), true) + &rows_to_csv(std::slice::from_ref(&failed), false);
        assert!(text.starts_with("experiment,case,allocator,round,turn,status,metric,unit,value\n"), "{text}");
        assert_eq!(rows_from_csv(&text).unwrap(), [row, failed]);
    }

    // Would catch a damaged line that is passed over.
    #[test]
    fn damage_is_reported() {
        let text = "experiment,case,allocator,round,turn,status,metric,unit,value\na,b,c,one,1,ok,m,u,1\n";
        let error = rows_from_csv(text).unwrap_err().to_string();
        assert!(error.contains("the rows are damaged") && error.contains("line: 2"), "{error}");
    }
}

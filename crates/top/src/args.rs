//! The arguments of `neap top`.

use crate::rows::Column;
use clap::Args;
use neap_launch::units::parse_duration;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  neap top                         all processes of this user; of all, as root
  neap top --sort rss --match '^python'
  neap top --once | head           a plain table
  neap top --json | jq '.[0]'

Keys: q quits; arrows, PgUp, PgDn, Home and End move; < and > choose the column
to sort by, r turns the order; / filters; Enter shows the verdict of neap why;
h lists the keys.";

/// Arguments of `neap top`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TopArgs {
    /// Print the table once, and end (also where there is no terminal)
    #[arg(long)]
    pub once: bool,

    /// Print all figures once as JSON
    #[arg(long, conflicts_with = "once")]
    pub json: bool,

    /// Limit on the time to read processes for a single table or JSON
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    pub wait: Duration,

    /// Only processes whose name or command line matches this regular expression
    #[arg(long = "match", value_name = "PATTERN")]
    pub pattern: Option<String>,

    /// The column to sort by [default: what could be given back]
    #[arg(long, value_enum, value_name = "COLUMN", default_value_t = Column::Back, hide_default_value = true)]
    pub sort: Column,

    /// Time between updates (2s, 500ms)
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    pub interval: Duration,

    /// Limit on processor time for PSS and accounts, in percent of one processor
    #[arg(long, value_name = "PERCENT", default_value = "10", value_parser = percent)]
    pub budget: f64,
}

fn interval(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        short if short < Duration::from_millis(200) => Err("at least 200ms".to_owned()),
        time => Ok(time),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(number) if (0.01..=100.0).contains(&number) => Ok(number),
        _ => Err("a number from 0.01 to 100".to_owned()),
    }
}

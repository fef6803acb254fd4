//! How an experiment is shown: charts and tables, as declarations over cases and metrics.
//!
//! A chart names figures, not values. The values are looked up in the rows, for every allocator, when it is drawn.

use serde::{Deserialize, Serialize};

/// Whether less or more of a figure is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Times, bytes, faults.
    Less,
    /// Rates.
    More,
    /// Neither: a description of the work.
    #[default]
    Neither,
}

impl Better {
    /// The usual direction for a unit: more is better for rates, less for times and sizes; counts have no direction.
    pub fn of_unit(unit: &str) -> Better {
        match unit {
            unit if unit.ends_with("/s") => Better::More,
            "ns" | "us" | "ms" | "s" | "B" | "KiB" | "MiB" | "GiB" => Better::Less,
            _ => Better::Neither,
        }
    }
}

/// One chart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// Short name, unique within the experiment; the export's file is called after it. Lower case and `-`.
    pub name: String,
    /// What it shows, with the unit.
    pub title: String,
    /// How it is drawn.
    pub kind: ChartKind,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Whether less or more is better; shown under the title.
    #[serde(default)]
    pub better: Better,
    /// What is drawn for each allocator. A single series needs no label: the allocator's name is enough.
    pub series: Vec<Series>,
    /// Only these allocators; if empty, all that have rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allocators: Vec<String>,
    /// Values to compare with: a published figure, a limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<Mark>,
    /// Figures that are places on the x axis of a line chart: the reach of a TLB on an axis of sizes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<Place>,
}

/// How a chart is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChartKind {
    /// A line for each series; x is a size, a number of threads, a round.
    #[default]
    Line,
    /// A bar for each allocator in each category. Never with a logarithmic y: a bar's length would mean nothing.
    Bar,
    /// A dot for each allocator in each category, with its spread; for values of different magnitudes.
    Dots,
}

/// An axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// What it counts.
    pub label: String,
    /// The unit: `us`, `ms`, `s`, `B`, `MiB`, `count`, `1/s`, `ratio`, or any other word. `B` is shown as KiB, MiB,
    /// GiB.
    #[serde(default)]
    pub unit: String,
    /// Logarithmic. Values of zero and less are drawn at the lower edge.
    #[serde(default)]
    pub log: bool,
}

/// The points of one series, for each allocator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Shown beside the allocator's name; empty if there is only one series.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label: String,
    /// From left to right.
    pub points: Vec<Point>,
}

/// Where one figure is drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Its place on the x axis.
    pub x: Position,
    /// Which case.
    pub case: String,
    /// Which metric.
    pub metric: String,
}

/// A place on the x axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Position {
    /// A number: a size, a count of threads, a round.
    At(f64),
    /// A category.
    Named(String),
}

impl Point {
    /// A point at a number.
    pub fn at(x: f64, case: impl Into<String>, metric: impl Into<String>) -> Point {
        Point { x: Position::At(x), case: case.into(), metric: metric.into() }
    }

    /// A point in a category.
    pub fn named(x: impl Into<String>, case: impl Into<String>, metric: impl Into<String>) -> Point {
        Point { x: Position::Named(x.into()), case: case.into(), metric: metric.into() }
    }
}

/// A value to compare with, drawn as a line at this value of y.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// What it is: `published for glibc 2.28`.
    pub label: String,
    /// On the y axis.
    pub value: f64,
}

/// A figure that is drawn as a line at this value of x, if an allocator has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// What it is: `TLB reach, 4 KiB pages`.
    pub label: String,
    /// Which case.
    pub case: String,
    /// Which metric; in the unit of the x axis.
    pub metric: String,
}

/// One table: allocators down, figures across.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// From left to right.
    pub columns: Vec<Column>,
}

/// One column of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// Its heading, with the unit.
    pub label: String,
    /// Which case.
    pub case: String,
    /// Which metric.
    pub metric: String,
}

impl Column {
    /// A column.
    pub fn new(label: impl Into<String>, case: impl Into<String>, metric: impl Into<String>) -> Column {
        Column { label: label.into(), case: case.into(), metric: metric.into() }
    }
}

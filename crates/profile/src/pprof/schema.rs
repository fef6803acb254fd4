//! The messages of `profile.proto`, the format of pprof (github.com/google/pprof/blob/main/proto/profile.proto).
//!
//! Strings are positions in [`Profile::string_table`], whose first entry is empty. Ids are numbers from 1 on; 0 means
//! none.

/// `message Profile`
#[derive(Clone, PartialEq, prost::Message)]
pub struct Profile {
    /// What the values of a sample mean.
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<ValueType>,
    /// The samples.
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<Sample>,
    /// Files in the process; the first is the program.
    #[prost(message, repeated, tag = "3")]
    pub mapping: Vec<Mapping>,
    /// Instructions.
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<Location>,
    /// Functions.
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<Function>,
    /// Texts.
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    /// A pattern of frames to be dropped together with their callees.
    #[prost(int64, tag = "7")]
    pub drop_frames: i64,
    /// A pattern of frames to be kept anyway.
    #[prost(int64, tag = "8")]
    pub keep_frames: i64,
    /// When it was taken, in nanoseconds since 1970.
    #[prost(int64, tag = "9")]
    pub time_nanos: i64,
    /// How long that took.
    #[prost(int64, tag = "10")]
    pub duration_nanos: i64,
    /// What is measured between two samples.
    #[prost(message, optional, tag = "11")]
    pub period_type: Option<ValueType>,
    /// How many units.
    #[prost(int64, tag = "12")]
    pub period: i64,
    /// Comments.
    #[prost(int64, repeated, tag = "13")]
    pub comment: Vec<i64>,
    /// The name of the value type that is shown by default.
    #[prost(int64, tag = "14")]
    pub default_sample_type: i64,
}

/// `message ValueType`
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct ValueType {
    /// Its name.
    #[prost(int64, tag = "1")]
    pub r#type: i64,
    /// Its unit.
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

/// `message Sample`
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Sample {
    /// The stack, innermost first.
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    /// One value for each of the profile's types.
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    /// Labels.
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<Label>,
}

/// `message Label`
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Label {
    /// The key.
    #[prost(int64, tag = "1")]
    pub key: i64,
    /// Its value, if it is a string.
    #[prost(int64, tag = "2")]
    pub str: i64,
    /// Its value, if it is a number.
    #[prost(int64, tag = "3")]
    pub num: i64,
    /// The number's unit.
    #[prost(int64, tag = "4")]
    pub num_unit: i64,
}

/// `message Mapping`
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Mapping {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// First address.
    #[prost(uint64, tag = "2")]
    pub memory_start: u64,
    /// The address behind it.
    #[prost(uint64, tag = "3")]
    pub memory_limit: u64,
    /// The position of the first address in the file.
    #[prost(uint64, tag = "4")]
    pub file_offset: u64,
    /// The path.
    #[prost(int64, tag = "5")]
    pub filename: i64,
    /// The build id, in hexadecimal.
    #[prost(int64, tag = "6")]
    pub build_id: i64,
    /// Whether function names were looked up.
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
    /// Whether file names were looked up.
    #[prost(bool, tag = "8")]
    pub has_filenames: bool,
    /// Whether lines were looked up.
    #[prost(bool, tag = "9")]
    pub has_line_numbers: bool,
    /// Whether inlined functions were looked up.
    #[prost(bool, tag = "10")]
    pub has_inline_frames: bool,
}

/// `message Location`
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Location {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The mapping that it is in.
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    /// The address in the process.
    #[prost(uint64, tag = "3")]
    pub address: u64,
    /// Inlined functions first, the function that contains them last.
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
    /// Whether the linker folded other functions into this one.
    #[prost(bool, tag = "5")]
    pub is_folded: bool,
}

/// `message Line`
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Line {
    /// The function.
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
    /// The line in its file.
    #[prost(int64, tag = "2")]
    pub line: i64,
    /// The column in the line.
    #[prost(int64, tag = "3")]
    pub column: i64,
}

/// `message Function`
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Function {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The demangled name.
    #[prost(int64, tag = "2")]
    pub name: i64,
    /// The name of the symbol.
    #[prost(int64, tag = "3")]
    pub system_name: i64,
    /// The file of source.
    #[prost(int64, tag = "4")]
    pub filename: i64,
    /// The line that it begins at.
    #[prost(int64, tag = "5")]
    pub start_line: i64,
}

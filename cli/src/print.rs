//! Formats records and answers: tables and pages for people, JSON and YAML for programs.
//!
//! Pure: functions of records and the current time that return text.

pub(crate) mod age;
pub(crate) mod containers;
pub(crate) mod decisions;
pub(crate) mod describe;
pub(crate) mod document;
pub(crate) mod drain;
pub(crate) mod explain;
pub(crate) mod fleet;
pub(crate) mod natural;
pub(crate) mod rows;
pub(crate) mod table;
pub(crate) mod word;
pub(crate) mod wrap;

pub(crate) use table::{Cell, Table};
pub(crate) use word::Word;

/// Whether the output has colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paint {
    Plain,
    Coloured,
}

/// Shown for an empty value.
pub(crate) const NONE: &str = "<none>";
/// Shown for an unknown value.
pub(crate) const UNKNOWN: &str = "<unknown>";

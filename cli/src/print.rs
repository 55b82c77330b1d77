//! How a record looks: to a person (tables, pages) and to a program (JSON, YAML).
//!
//! Pure: records and the time go in, text comes out.

pub(crate) mod age;
pub(crate) mod describe;
pub(crate) mod document;
pub(crate) mod drain;
pub(crate) mod explain;
pub(crate) mod fleet;
pub(crate) mod rows;
pub(crate) mod table;

pub(crate) use table::{Cell, Table};

/// Whether text is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paint {
    Plain,
    Coloured,
}

/// What is shown where there is nothing to show.
pub(crate) const NONE: &str = "<none>";
/// What is shown where it is not known.
pub(crate) const UNKNOWN: &str = "<unknown>";

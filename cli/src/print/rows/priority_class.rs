//! Priority classes as rows.

use jiff::Timestamp;
use muster_proto::priority_class::PriorityClass;

use super::{Tabular, or_none};
use crate::print::{Cell, age};

impl Tabular for PriorityClass {
    const COLUMNS: &'static [&'static str] = &["NAME", "VALUE", "GLOBAL-DEFAULT", "AGE", "PREEMPTIONPOLICY"];
    const WIDE: &'static [&'static str] = &["DESCRIPTION"];

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        vec![
            Cell::new(self.meta.name.as_str()),
            Cell::new(self.value.to_string()),
            Cell::new(self.global_default.to_string()),
            Cell::new(age::since(self.meta.creation_timestamp, now)),
            Cell::new(self.preemption_policy.to_string()),
        ]
    }

    fn wide(&self, _now: Timestamp) -> Vec<Cell> {
        vec![Cell::new(or_none(&self.description))]
    }
}

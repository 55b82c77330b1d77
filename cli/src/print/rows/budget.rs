//! Disruption budgets as rows.

use jiff::Timestamp;
use muster_proto::budget::{DisruptionBudget, DisruptionLimit};

use super::Tabular;
use crate::print::{Cell, age};

impl Tabular for DisruptionBudget {
    const COLUMNS: &'static [&'static str] =
        &["NAME", "MIN AVAILABLE", "MAX UNAVAILABLE", "ALLOWED DISRUPTIONS", "AGE"];
    const WIDE: &'static [&'static str] = &["HEALTHY", "DESIRED", "EXPECTED", "DISRUPTED"];

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let (min, max) = match self.spec.limit {
            DisruptionLimit::MinAvailable(count) => (count.to_string(), "N/A".to_owned()),
            DisruptionLimit::MaxUnavailable(count) => ("N/A".to_owned(), count.to_string()),
        };
        let allowed = Cell::new(self.status.disruptions_allowed.to_string());
        vec![
            Cell::new(self.meta.name.as_str()),
            Cell::new(min),
            Cell::new(max),
            if self.status.disruptions_allowed > 0 { allowed } else { allowed.doubtful() },
            Cell::new(age::since(self.meta.creation_timestamp, now)),
        ]
    }

    fn wide(&self, _now: Timestamp) -> Vec<Cell> {
        let status = &self.status;
        let counts = [status.current_healthy, status.desired_healthy, status.expected_pods];
        let disrupted = status.disrupted_pods.len().to_string();
        counts.into_iter().map(|count| Cell::new(count.to_string())).chain([Cell::new(disrupted)]).collect()
    }
}

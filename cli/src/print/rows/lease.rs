//! Leases as rows.

use jiff::Timestamp;
use muster_proto::lease::Lease;

use super::{Tabular, or_none};
use crate::print::{Cell, NONE, age};

impl Tabular for Lease {
    const COLUMNS: &'static [&'static str] = &["NAME", "HOLDER", "RENEWED", "DURATION", "AGE"];
    const WIDE: &'static [&'static str] = &["TRANSITIONS", "STATUS-AGE"];

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let duration = self.spec.lease_duration_seconds;
        let since_renewal = self.spec.renew_time.map(|renewed| now.duration_since(renewed).as_secs());
        let renewed = match self.spec.renew_time {
            Some(_) => Cell::new(format!("{} ago", age::since(self.spec.renew_time, now))),
            None => Cell::new("never"),
        };
        let is_expired = match (since_renewal, duration) {
            (Some(since_renewal), Some(duration)) => since_renewal > i64::from(duration),
            _ => self.spec.renew_time.is_none(),
        };
        vec![
            Cell::new(self.meta.name.as_str()),
            Cell::new(or_none(&self.spec.holder_identity)),
            if is_expired { renewed.bad() } else { renewed },
            Cell::new(duration.map_or_else(|| NONE.to_owned(), |seconds| format!("{seconds}s"))),
            Cell::new(age::since(self.meta.creation_timestamp, now)),
        ]
    }

    fn wide(&self, _now: Timestamp) -> Vec<Cell> {
        vec![
            Cell::new(self.spec.lease_transitions.to_string()),
            Cell::new(format!("{}ms", self.spec.status_age_millis)),
        ]
    }
}

//! Revocations as rows.

use jiff::Timestamp;
use muster_proto::revocation::Revocation;

use super::{Tabular, or_none};
use crate::print::{Cell, NONE, age};

impl Tabular for Revocation {
    const COLUMNS: &'static [&'static str] = &["NAME", "REVOKED", "BY", "REASON", "SINCE"];
    const WIDE: &'static [&'static str] = &["KEPT FOR"];

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        vec![
            Cell::new(self.meta.name.as_str()),
            Cell::new(self.spec.revoked.to_string()),
            Cell::new(or_none(&self.status.revoked_by)),
            Cell::new(or_none(&self.spec.reason)),
            Cell::new(age::since(self.status.revoke_time, now)),
        ]
    }

    fn wide(&self, now: Timestamp) -> Vec<Cell> {
        let kept = self.spec.expire_time.map(|expires| age::until(expires, now));
        vec![Cell::new(kept.unwrap_or_else(|| NONE.to_owned()))]
    }
}

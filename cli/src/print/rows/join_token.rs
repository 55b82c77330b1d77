//! Join tokens as rows.

use jiff::Timestamp;
use muster_proto::join_token::JoinToken;

use super::{Tabular, labels, or_none};
use crate::print::{Cell, age};

impl Tabular for JoinToken {
    const COLUMNS: &'static [&'static str] = &["NAME", "NODE", "LABELS", "USES", "EXPIRES IN", "AGE"];
    const WIDE: &'static [&'static str] = &["CREATED BY", "LAST USE"];

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let uses = Cell::new(format!("{}/{}", self.status.uses, self.spec.max_uses));
        let expires = Cell::new(age::until(self.spec.expire_time, now));
        vec![
            Cell::new(self.meta.name.as_str()),
            Cell::new(or_none(self.spec.node_name.as_ref().map_or("", |node| node.as_str()))),
            Cell::new(labels(&self.spec.labels)),
            if self.status.uses < self.spec.max_uses { uses } else { uses.doubtful() },
            if now < self.spec.expire_time { expires } else { expires.bad() },
            Cell::new(age::since(self.meta.creation_timestamp, now)),
        ]
    }

    fn wide(&self, now: Timestamp) -> Vec<Cell> {
        let last_use = self.status.last_use_time.map(|last| format!("{} ago", age::since(Some(last), now)));
        vec![
            Cell::new(or_none(&self.spec.created_by)),
            Cell::new(last_use.unwrap_or_else(|| "never".to_owned())),
        ]
    }
}

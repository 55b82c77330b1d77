//! Pods as rows.

use jiff::Timestamp;
use muster_proto::name::Name;
use muster_proto::pod::Pod;

use super::pod_status::PodSummary;
use super::{Tabular, or_none};
use crate::print::{Cell, age};

impl Tabular for Pod {
    const COLUMNS: &'static [&'static str] = &["NAME", "READY", "STATUS", "RESTARTS", "AGE", "NODE"];
    const WIDE: &'static [&'static str] = &["IP", "QOS", "PRIORITY", "OWNER"];
    const STATUSES: &'static [&'static str] = &[
        "Pending",
        "Running",
        "Succeeded",
        "Failed",
        "Terminating",
        "the reason of a container, such as Error",
    ];

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let summary = PodSummary::of(self);
        let restarts = match summary.last_restart {
            Some(moment) => format!("{} ({} ago)", summary.restarts, age::since(Some(moment), now)),
            None => summary.restarts.to_string(),
        };
        vec![
            Cell::new(self.meta.name.as_str()),
            Cell::new(format!("{}/{}", summary.ready, summary.containers)),
            summary.cell(),
            Cell::new(restarts),
            Cell::new(age::since(self.meta.creation_timestamp, now)),
            Cell::new(or_none(self.spec.node_name.as_ref().map(Name::as_str).unwrap_or_default())),
        ]
    }

    fn wide(&self, _now: Timestamp) -> Vec<Cell> {
        let owner = self.meta.controller();
        vec![
            Cell::new(or_none(&self.status.pod_ip().map(|ip| ip.to_string()).unwrap_or_default())),
            Cell::new(self.status.qos_class.unwrap_or_else(|| self.qos()).to_string()),
            Cell::new(self.spec.priority.unwrap_or_default().to_string()),
            Cell::new(or_none(
                &owner.map(|owner| format!("{}/{}", owner.kind, owner.name)).unwrap_or_default(),
            )),
        ]
    }

    fn status_words(&self) -> Vec<String> {
        vec![PodSummary::of(self).status]
    }
}

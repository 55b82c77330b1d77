//! Requests for certificates as rows.

use jiff::Timestamp;
use muster_proto::certificate_request::{CertificateRequest, RequestState};

use super::{Tabular, or_none};
use crate::print::{Cell, age};

impl Tabular for CertificateRequest {
    const COLUMNS: &'static [&'static str] = &["NAME", "NODE", "STATE", "REQUESTED BY", "FROM", "AGE"];
    const WIDE: &'static [&'static str] = &["DECIDED BY", "SERIAL", "EXPIRES IN", "REASON"];

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let state = Cell::new(self.status.state.to_string());
        vec![
            Cell::new(self.meta.name.as_str()),
            Cell::new(self.spec.node_name.as_str()),
            match self.status.state {
                RequestState::Pending => state.doubtful(),
                RequestState::Denied | RequestState::Failed => state.bad(),
                RequestState::Approved | RequestState::Issued => state,
            },
            Cell::new(or_none(&self.spec.requested_by)),
            Cell::new(or_none(&self.spec.source_address)),
            Cell::new(age::since(self.meta.creation_timestamp, now)),
        ]
    }

    fn wide(&self, now: Timestamp) -> Vec<Cell> {
        let issued = self.status.issued.as_ref();
        let serial = issued.map(|issued| issued.serial.to_string()).unwrap_or_default();
        let expires = issued.map(|issued| age::until(issued.not_after, now)).unwrap_or_default();
        let cells = [&self.status.decided_by, &serial, &expires, &self.status.reason];
        cells.into_iter().map(|text| Cell::new(or_none(text))).collect()
    }
}

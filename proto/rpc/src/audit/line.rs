//! The format of a line: one JSON object. Pure.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use super::queue::Entry;
use crate::identity::{self, Identified};
use crate::layers::call_metrics::code_name;

/// Certificates that were read, at most.
const MAX_CERTIFICATES: usize = 4096;

/// A line. What is unknown or does not apply is left out.
#[derive(Serialize)]
struct Line<'a> {
    /// When the call ended: RFC 3339, UTC, with microseconds.
    time: String,
    caller: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    subject: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    serial: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<SocketAddr>,
    service: &'a str,
    method: &'a str,
    verb: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    code: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    rule: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
}

/// The line after lines that were lost.
#[derive(Serialize)]
struct Lost {
    time: String,
    lost: u64,
    message: &'static str,
}

/// The holders of certificates. Reading one takes longer than all the rest of a line.
#[derive(Default)]
pub(super) struct Certificates(HashMap<Vec<u8>, Arc<Identified>>);

impl Certificates {
    fn holder(&mut self, entry: &Entry) -> Arc<Identified> {
        let certificates =
            entry.call.connection.as_ref().map(|connection| connection.peer_certs().unwrap_or_default());
        let Some(certificates) = certificates else { return Arc::new(identity::identified(None)) };
        let own = certificates.first().map(AsRef::as_ref).unwrap_or_default();
        if let Some(known) = self.0.get(own) {
            return Arc::clone(known);
        }
        if self.0.len() >= MAX_CERTIFICATES {
            self.0.clear();
        }
        let holder = Arc::new(identity::identified(Some(own)));
        self.0.insert(own.to_vec(), Arc::clone(&holder));
        holder
    }
}

/// Appends the line of a call.
pub(super) fn write_line(entry: &Entry, certificates: &mut Certificates, out: &mut Vec<u8>) {
    let Entry { time, call, outcome } = entry;
    let holder = certificates.holder(entry);
    let (method, notes) = (&*call.method, call.notes().clone());
    let (verb, kind) = match notes.message {
        Some((verb, kind)) => (verb, Some(kind)),
        None => (method.verb.as_str(), method.kind),
    };
    write(
        &Line {
            time: micros(*time),
            caller: &holder.caller,
            subject: &holder.subject,
            serial: &holder.serial,
            from: call.peer,
            service: &method.service,
            method: &method.name,
            verb,
            kind: kind.map(|kind| kind.to_string()),
            namespace: &notes.namespace,
            name: &notes.name,
            code: &code_name(outcome.code),
            reason: &outcome.reason,
            rule: &outcome.rule,
            message: &outcome.message,
            // A revision that was noted before the call failed is not one that it wrote.
            revision: notes.revision.filter(|_| outcome.code == tonic::Code::Ok),
            trace: call.trace.map(|trace| trace.to_string()),
        },
        out,
    );
}

/// Appends the line that says how many lines are missing.
pub(super) fn write_lost(time: Timestamp, lost: u64, out: &mut Vec<u8>) {
    let message = "lines were lost here: the log could not be written";
    write(&Lost { time: micros(time), lost, message }, out);
}

fn write(line: &impl Serialize, out: &mut Vec<u8>) {
    // Neither a map with keys that are no text nor a writer that fails is involved.
    let _ = serde_json::to_writer(&mut *out, line);
    out.push(b'\n');
}

fn micros(time: Timestamp) -> String {
    format!("{time:.6}")
}

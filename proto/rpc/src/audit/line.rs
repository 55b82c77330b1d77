//! The format of a line: one JSON object. Pure.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;

use jiff::Timestamp;
use muster_proto::record::Kind;
use opentelemetry::trace::TraceId;
use serde::{Serialize, Serializer};
use tonic::Code;

use super::queue::Entry;
use crate::identity::{self, Identified};

/// Certificates that were read, at most.
const MAX_CERTIFICATES: usize = 4096;

/// A value as its text, which is written without a string in between.
struct Text<T>(T);

impl<T: fmt::Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// A time as RFC 3339 has it: in UTC, with microseconds.
struct Micros(Timestamp);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}", self.0)
    }
}

/// A code by its name, as the metrics have it.
struct CodeName(Code);

impl fmt::Display for CodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Code::Ok => f.write_str("OK"),
            code => write!(f, "{code:?}"),
        }
    }
}

/// A line. What is unknown or does not apply is left out.
#[derive(Serialize)]
struct Line<'a> {
    /// When the call ended.
    time: Text<Micros>,
    caller: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    subject: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    serial: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<SocketAddr>,
    #[serde(skip_serializing_if = "str::is_empty")]
    via: &'a str,
    service: &'a str,
    method: &'a str,
    verb: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<Text<Kind>>,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    code: Text<CodeName>,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    rule: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<Text<TraceId>>,
}

/// The line after lines that were lost.
#[derive(Serialize)]
struct Lost {
    time: Text<Micros>,
    lost: u64,
    message: &'static str,
}

/// The holders of certificates. Reading one takes longer than all the rest of a line.
pub(super) struct Certificates {
    without_tls: Identified,
    known: HashMap<Vec<u8>, Identified>,
}

impl Default for Certificates {
    fn default() -> Certificates {
        Certificates { without_tls: identity::identified(None), known: HashMap::new() }
    }
}

impl Certificates {
    fn holder(&mut self, entry: &Entry) -> &Identified {
        let Some(certificates) = &entry.call.certificates else { return &self.without_tls };
        let own = certificates.first().map(AsRef::as_ref).unwrap_or_default();
        if !self.known.contains_key(own) {
            if self.known.len() >= MAX_CERTIFICATES {
                self.known.clear();
            }
            self.known.insert(own.to_vec(), identity::identified(Some(own)));
        }
        &self.known[own]
    }
}

/// Appends the line of a call.
pub(super) fn write_line(entry: &Entry, certificates: &mut Certificates, out: &mut Vec<u8>) {
    let Entry { time, call, outcome } = entry;
    let holder = certificates.holder(entry);
    let (method, notes) = (&*call.method, call.notes());
    let (verb, kind) = match notes.message {
        Some((verb, kind)) => (verb, Some(kind)),
        None => (method.verb.as_str(), method.kind),
    };
    write(
        &Line {
            time: Text(Micros(*time)),
            caller: &holder.caller,
            subject: &holder.subject,
            serial: &holder.serial,
            from: call.peer,
            via: call.forwarded_by.as_ref().map_or("", |by| by.name()),
            service: &method.service,
            method: &method.name,
            verb,
            kind: kind.map(Text),
            namespace: &notes.namespace,
            name: &notes.name,
            code: Text(CodeName(outcome.code)),
            reason: &outcome.reason,
            rule: &outcome.rule,
            message: &outcome.message,
            // A revision that was noted before the call failed is not one that it wrote.
            revision: notes.revision.filter(|_| outcome.code == Code::Ok),
            trace: call.trace.map(Text),
        },
        out,
    );
}

/// Appends the line that says how many lines are missing.
pub(super) fn write_lost(time: Timestamp, lost: u64, out: &mut Vec<u8>) {
    let message = "lines were lost here: the log could not be written";
    write(&Lost { time: Text(Micros(time)), lost, message }, out);
}

fn write(line: &impl Serialize, out: &mut Vec<u8>) {
    // Neither a map with keys that are no text nor a writer that fails is involved.
    let _ = serde_json::to_writer(&mut *out, line);
    out.push(b'\n');
}

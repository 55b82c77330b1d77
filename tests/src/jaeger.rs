//! The real Jaeger as a child process: it collects spans over OTLP and serves traces over the API of its web pages.

#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::http;
use crate::store_process::{TIMEOUT, free_port};
use crate::tools::tool;

/// A Jaeger that keeps its traces in memory. It is killed when it is dropped.
pub struct Jaeger {
    child: Child,
    directory: TempDir,
    otlp: SocketAddr,
    query: SocketAddr,
}

/// A span as Jaeger returns it.
#[derive(Clone, Debug)]
pub struct Span {
    pub service: String,
    pub name: String,
    pub id: String,
    /// The parent span, if it is in the same trace.
    pub parent: Option<String>,
    /// Linked spans, in this trace or others.
    pub links: Vec<String>,
    /// Microseconds since 1970.
    pub start: u64,
    pub micros: u64,
    pub tags: BTreeMap<String, String>,
}

impl Jaeger {
    /// Starts one on free ports and waits until it answers.
    pub fn start() -> Jaeger {
        let directory = tempfile::tempdir().expect("a directory for Jaeger");
        let [otlp, query, query_grpc] = [(); 3].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
        let config = directory.path().join("config.yaml");
        fs::write(&config, configuration(otlp, query, query_grpc)).expect("a file");
        let log = fs::File::create(directory.path().join("log")).expect("a file");
        let child = Command::new(tool("jaeger"))
            .arg(format!("--config={}", config.display()))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle of it"))
            .stderr(log)
            .spawn()
            .expect("Jaeger can be run");
        let mut jaeger = Jaeger { child, directory, otlp, query };
        jaeger.wait_until_it_answers();
        jaeger
    }

    fn wait_until_it_answers(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        while self.ask("/api/services").is_none() {
            let ended = self.child.try_wait().expect("Jaeger is our child");
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
                panic!("Jaeger does not answer ({ended:?}); its log:\n{log}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The URL to send spans to.
    pub fn collector(&self) -> String {
        format!("http://{}", self.otlp)
    }

    fn ask(&self, path: &str) -> Option<Value> {
        let answer: Value = serde_json::from_str(&http::get(self.query, path)?).ok()?;
        // `data` is null when nothing was found, and absent in an error.
        answer.get("data").cloned()
    }

    /// The names of the services that have sent spans.
    pub fn services(&self) -> BTreeSet<String> {
        let found = self.ask("/api/services").unwrap_or_default();
        let names = found.as_array().into_iter().flatten();
        names.filter_map(|name| Some(name.as_str()?.to_owned())).collect()
    }

    /// The traces of a service with a span of that name and such a tag, each as its spans, the earliest first.
    pub fn traces(&self, service: &str, span: &str, tag: (&str, &str)) -> Vec<Vec<Span>> {
        let tags = http::percent_encoded(&serde_json::json!({ tag.0: tag.1 }).to_string());
        let path =
            format!("/api/traces?service={service}&operation={span}&tags={tags}&lookback=1h&limit=100");
        let found = self.ask(&path).unwrap_or_default();
        found.as_array().into_iter().flatten().map(spans).collect()
    }
}

impl Drop for Jaeger {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A minimal configuration on these ports.
fn configuration(otlp: SocketAddr, query: SocketAddr, query_grpc: SocketAddr) -> String {
    format!(
        r#"
extensions:
  jaeger_storage: {{backends: {{kept: {{memory: {{max_traces: 100000}}}}}}}}
  jaeger_query: {{storage: {{traces: kept}}, http: {{endpoint: "{query}"}}, grpc: {{endpoint: "{query_grpc}"}}}}
receivers:
  otlp: {{protocols: {{grpc: {{endpoint: "{otlp}"}}}}}}
exporters:
  jaeger_storage_exporter: {{trace_storage: kept}}
service:
  extensions: [jaeger_storage, jaeger_query]
  pipelines: {{traces: {{receivers: [otlp], exporters: [jaeger_storage_exporter]}}}}
  telemetry: {{metrics: {{level: none}}, logs: {{level: warn}}}}
"#
    )
}

/// The spans of a trace, the earliest first.
fn spans(trace: &Value) -> Vec<Span> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let own = text(&trace["traceID"]);
    let span = |span: &Value| {
        let references = list(&span["references"]);
        let of_kind = |kind: &str| -> Vec<String> {
            let such = references.iter().filter(|reference| reference["refType"] == kind);
            such.map(|reference| text(&reference["spanID"])).collect()
        };
        let process = text(&span["processID"]);
        Span {
            service: text(&trace["processes"][&process]["serviceName"]),
            name: text(&span["operationName"]),
            id: text(&span["spanID"]),
            parent: references
                .iter()
                .find(|reference| reference["refType"] == "CHILD_OF" && reference["traceID"] == own)
                .map(|reference| text(&reference["spanID"])),
            links: of_kind("FOLLOWS_FROM"),
            start: span["startTime"].as_u64().unwrap_or_default(),
            micros: span["duration"].as_u64().unwrap_or_default(),
            tags: list(&span["tags"]).iter().map(|tag| (text(&tag["key"]), text(&tag["value"]))).collect(),
        }
    };
    let mut spans: Vec<Span> = list(&trace["spans"]).iter().map(span).collect();
    spans.sort_by_key(|span| span.start);
    spans
}

/// The services that took part in a trace.
pub fn services(trace: &[Span]) -> BTreeSet<&str> {
    trace.iter().map(|span| span.service.as_str()).collect()
}

/// A trace as text: one line per span with its time, service and name, indented below its parent.
pub fn render(trace: &[Span]) -> String {
    let begin = trace.first().map_or(0, |first| first.start);
    let depth = |span: &Span| {
        let above = |id: &str| trace.iter().find(|other| other.id == id);
        std::iter::successors(span.parent.as_deref().and_then(above), |span| {
            span.parent.as_deref().and_then(above)
        })
        .count()
    };
    let line = |span: &Span| {
        let seconds = (span.start - begin) as f64 / 1e6;
        let (indent, lasted) = ("  ".repeat(depth(span)), span.micros as f64 / 1e3);
        format!("{seconds:9.3} s {lasted:10.3} ms  {:<18} {indent}{}\n", span.service, span.name)
    };
    trace.iter().map(line).collect()
}

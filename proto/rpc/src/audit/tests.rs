//! The audit log through its layer, in real files.

use std::convert::Infallible;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use http::{Request, Response};
use muster_proto::ERROR_DOMAIN;
use muster_proto::record::Kind;
use muster_proto::time::Mono;
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::body::Body;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};
use tower::{Layer, ServiceExt, service_fn};

use super::*;
use crate::clock::ManualClock;
use crate::layers::audit::AuditLayer;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A log in a directory of its own.
struct Bench {
    directory: TempDir,
    clock: Arc<ManualClock>,
    log: AuditLog,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(CAPACITY, |_| ())
    }

    /// `prepare` gets the path before the log is opened.
    fn with(capacity: usize, prepare: impl FnOnce(&Path)) -> Bench {
        let directory = tempfile::tempdir().unwrap();
        let wall = jiff::Timestamp::from_microsecond(1_700_000_000_123_456).unwrap();
        let clock = Arc::new(ManualClock::new(wall, Mono::ZERO));
        prepare(&directory.path().join("audit.log"));
        let shared: SharedClock = clock.clone();
        let log = AuditLog::at(&directory.path().join("audit.log"), capacity, &shared).unwrap();
        Bench { directory, clock, log }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Calls a method whose handler does this.
    async fn call<F>(&self, path: &str, handler: impl Fn() -> F + Clone)
    where
        F: Future<Output = Result<(), Status>>,
    {
        let layer = AuditLayer::new(Some(self.log.clone()), muster_proto::DESCRIPTORS).unwrap();
        let service = service_fn(move |_: Request<Body>| {
            let answer = handler();
            async move {
                let answer = answer.await.map(|()| Response::new(Body::default()));
                Ok::<_, Infallible>(answer.unwrap_or_else(Status::into_http))
            }
        });
        let request = Request::builder().uri(path).body(Body::default()).unwrap();
        layer.layer(service).oneshot(request).await.unwrap();
    }

    /// Creates a node of that name.
    async fn create(&self, name: &'static str) {
        self.call("/muster.v1.NodeService/CreateNode", move || async move {
            note_record("", name);
            Ok(())
        })
        .await;
    }

    fn lines(&self, name: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits until a file has so many lines.
    async fn wait_for(&self, name: &str, count: usize) -> Vec<Value> {
        let lines = async {
            while self.lines(name).len() < count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            self.lines(name)
        };
        tokio::time::timeout(TIMEOUT, lines).await.expect("the lines are written in time")
    }

    /// All lines, after the log has ended.
    async fn close(self) -> Vec<Value> {
        self.log.clone().close().await;
        self.lines("audit.log")
    }
}

fn denied() -> Status {
    let metadata = [("rule".to_owned(), "only its own".to_owned())];
    let details = ErrorDetails::with_error_info("PERMISSION_DENIED", ERROR_DOMAIN, metadata);
    Status::with_error_details(Code::PermissionDenied, "node:a may not: only its own", details)
}

#[tokio::test]
async fn a_write_is_logged_with_its_record_outcome_and_revision() {
    let bench = Bench::new();
    bench
        .call("/muster.v1.PodService/UpdatePodStatus", || async {
            note_record("default", "web");
            note_revision(17);
            Ok(())
        })
        .await;
    bench
        .call("/muster.v1.PodService/UpdatePodStatus", || async {
            note_record("default", "web");
            Err(Status::aborted("is at version 17"))
        })
        .await;
    let written = json!({
        "time": "2023-11-14T22:13:20.123456Z", "caller": "admin",
        "service": "muster.v1.PodService", "method": "UpdatePodStatus", "verb": "update_status",
        "kind": "Pod", "namespace": "default", "name": "web", "code": "OK", "revision": 17,
    });
    let refused = json!({
        "time": "2023-11-14T22:13:20.123456Z", "caller": "admin",
        "service": "muster.v1.PodService", "method": "UpdatePodStatus", "verb": "update_status",
        "kind": "Pod", "namespace": "default", "name": "web", "code": "Aborted", "message": "is at version 17",
    });
    assert_eq!(bench.close().await, [written, refused]);
}

#[tokio::test]
async fn of_reads_and_renewals_only_denials_are_logged() {
    let bench = Bench::new();
    for path in [
        "/muster.v1.NodeService/GetNode",
        "/muster.v1.NodeService/WatchNodes",
        "/muster.v1.LeaseService/RenewLease",
        "/muster.v1.HeartbeatService/Heartbeat",
    ] {
        bench.call(path, || async { Ok(()) }).await;
        bench.call(path, || async { Err(Status::not_found("no such record")) }).await;
        bench.call(path, || async { Err(denied()) }).await;
        bench.call(path, || async { Err(Status::unauthenticated("who are you?")) }).await;
    }
    bench.call("/muster.v1.NodeService/Unknown", || async { Err(Status::unimplemented("")) }).await;
    let lines = bench.close().await;
    let codes: Vec<_> = lines.iter().map(|line| line["code"].as_str().unwrap()).collect();
    assert_eq!(codes, ["PermissionDenied", "Unauthenticated"].repeat(4));
    assert_eq!(lines[0]["reason"], "PERMISSION_DENIED");
    assert_eq!(lines[0]["rule"], "only its own");
    assert_eq!(lines[0]["message"], "node:a may not: only its own");
}

#[tokio::test]
async fn a_renewal_that_acquires_a_lease_is_logged() {
    let bench = Bench::new();
    bench
        .call("/muster.v1.LeaseService/RenewLease", || async {
            note_write();
            Ok(())
        })
        .await;
    assert_eq!(bench.close().await[0]["verb"], "renew");
}

#[tokio::test]
async fn a_write_whose_caller_goes_away_is_logged() {
    let bench = Bench::new();
    let mut abandoned = Box::pin(bench.call("/muster.v1.NodeService/DeleteNode", || async {
        note_record("", "a");
        std::future::pending().await
    }));
    assert!(futures_util::poll!(&mut abandoned).is_pending());
    drop(abandoned);
    let lines = bench.close().await;
    assert_eq!((&lines[0]["name"], &lines[0]["code"]), (&json!("a"), &json!("Cancelled")));
}

#[tokio::test]
async fn messages_of_a_stream_are_logged_as_writes() {
    let bench = Bench::new();
    bench
        .call("/muster.v1.HeartbeatService/Heartbeat", || async {
            let stream = current();
            let written = async {
                note_revision(9);
                Ok(())
            };
            message(stream.clone(), "update_status", (Kind::Node, "", "a"), written).await?;
            let hello =
                message(stream.clone(), "hello", (Kind::Lease, "x", "b"), async { Err::<(), _>(denied()) });
            assert!(hello.await.is_err());
            let mut gone = Box::pin(message(
                stream,
                "hello",
                (Kind::Lease, "x", "c"),
                std::future::pending::<Result<(), _>>(),
            ));
            assert!(futures_util::poll!(&mut gone).is_pending());
            Ok(())
        })
        .await;
    let lines = bench.close().await;
    let short: Vec<_> = lines
        .iter()
        .map(|line| ["method", "verb", "kind", "name", "code", "revision"].map(|field| line[field].clone()))
        .collect();
    let expected = [
        ("update_status", "Node", "a", "OK", json!(9)),
        ("hello", "Lease", "b", "PermissionDenied", Value::Null),
        ("hello", "Lease", "c", "Cancelled", Value::Null),
    ];
    let expected = expected.map(|(verb, kind, name, code, revision)| {
        [json!("Heartbeat"), json!(verb), json!(kind), json!(name), json!(code), revision]
    });
    assert_eq!(short, expected);
}

#[tokio::test]
async fn nothing_is_noted_outside_of_an_audited_call() {
    note_record("a", "b");
    note_revision(1);
    note_write();
    assert!(current().is_none());
    assert_eq!(message(None, "hello", (Kind::Lease, "a", "b"), async { Ok(3) }).await.unwrap(), 3);
}

#[tokio::test]
async fn a_renamed_or_removed_file_is_opened_again_and_only_its_owner_can_read_it() {
    let bench = Bench::new();
    bench.create("a").await;
    bench.wait_for("audit.log", 1).await;
    fs::rename(bench.path("audit.log"), bench.path("audit.log.1")).unwrap();
    // Within a second the old file may be used.
    bench.create("b").await;
    bench.wait_for("audit.log.1", 2).await;
    bench.clock.advance(Duration::from_secs(1));
    bench.create("c").await;
    let lines = bench.wait_for("audit.log", 1).await;
    assert_eq!(lines[0]["name"], "c");
    assert_eq!(fs::metadata(bench.path("audit.log")).unwrap().permissions().mode() & 0o777, 0o600);

    fs::remove_file(bench.path("audit.log")).unwrap();
    bench.log.reopen();
    let opened = async {
        while !bench.path("audit.log").exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, opened).await.expect("the file is opened at once when that is requested");
    bench.create("d").await;
    assert_eq!(bench.close().await[0]["name"], "d");
}

#[tokio::test]
async fn a_full_disk_delays_no_call_and_what_is_lost_is_counted_and_noted() {
    let bench = Bench::with(3, |path| symlink("/dev/full", path).unwrap());
    bench.create("first").await;
    // The writer has taken the first line and tries to write it.
    let queue = Arc::clone(&bench.log.queue);
    let taken = async {
        while queue.len() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, taken).await.expect("the writer takes the line");
    for _ in 0..10 {
        bench.create("later").await;
    }
    assert_eq!((queue.lines.get(), queue.lost.get()), (11, 7), "three lines wait, seven are lost");

    // As if an operator had made another disk the place of the log.
    fs::remove_file(bench.path("audit.log")).unwrap();
    bench.clock.advance(Duration::from_secs(1));
    let lines = bench.wait_for("audit.log", 5).await;
    let names: Vec<_> = lines.iter().map(|line| line["name"].as_str()).collect();
    assert_eq!(names, [Some("first"), Some("later"), Some("later"), Some("later"), None]);
    assert_eq!(lines[4]["lost"], 7, "{}", lines[4]);
    bench.create("last").await;
    assert_eq!(bench.close().await[5]["name"], "last");
}

#[tokio::test]
async fn a_log_that_cannot_be_written_does_not_keep_the_process_from_ending() {
    let bench = Bench::with(3, |path| symlink("/dev/full", path).unwrap());
    bench.create("a").await;
    tokio::time::timeout(TIMEOUT, bench.log.clone().close()).await.expect("the log ends");
}

#[tokio::test]
async fn the_thread_of_a_log_that_nobody_has_any_more_writes_the_rest_and_ends() {
    let bench = Bench::new();
    bench.create("a").await;
    let queue = Arc::clone(&bench.log.queue.0);
    let Bench { directory, log, .. } = bench;
    drop(log);
    let ended = async {
        while Arc::strong_count(&queue) > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, ended).await.expect("the thread ends");
    assert!(fs::read_to_string(directory.path().join("audit.log")).unwrap().contains("\"name\":\"a\""));
}

#[test]
fn a_log_that_cannot_be_opened_names_its_flag_and_file() {
    let flags = AuditFlags { audit_log: Some("/nowhere/audit.log".into()) };
    let clock = crate::clock::SystemClock::shared();
    let error = AuditLog::open(&flags, &clock, &mut Registry::default()).unwrap_err().to_string();
    assert!(error.starts_with("--audit-log: cannot open /nowhere/audit.log: "), "{error}");
}

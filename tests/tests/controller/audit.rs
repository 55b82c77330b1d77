//! The controller's audit log: what operators asked it for. The store's log has what it wrote then.

use muster_proto::pb;
use muster_tests::audit_log::AuditLog;
use muster_tests::fleet::Fleet;

#[tokio::test(flavor = "multi_thread")]
async fn cordons_and_drains_are_logged_with_the_revision_that_they_wrote() {
    let directory = tempfile::tempdir().unwrap();
    let log = AuditLog::at(&directory.path().join("audit.log"));
    let flag = format!("--audit-log={}", directory.path().join("audit.log").display());
    let fleet = Fleet::start(&[&flag]);
    fleet.node_without_agent("a", "z", "True").await;
    let mut service = fleet.service();
    let (name, reason) = ("a".to_owned(), "the fan is loud".to_owned());
    let cordon = pb::CordonNodeRequest { name: name.clone(), reason: reason.clone(), duration: None };
    let cordoned = service.cordon_node(cordon).await.unwrap().into_inner().node.unwrap();
    fleet.explain("a").await;
    let missing = pb::UncordonNodeRequest { name: "b".to_owned(), reason: reason.clone(), all: false };
    service.uncordon_node(missing).await.unwrap_err();
    let plan = pb::DrainNodeRequest { name, reason, options: None, timeout: None, plan_only: true };
    service.drain_node(plan).await.unwrap();

    let line = log.expect("the plan of a drain", |line| line["verb"] == "drain").await;
    assert!(line["revision"].is_null(), "a plan writes nothing: {line}");
    let lines = log.lines();
    let fields = ["caller", "method", "kind", "name", "code"];
    let short: Vec<_> =
        lines.iter().map(|line| fields.map(|field| line[field].as_str().unwrap_or_default())).collect();
    assert_eq!(
        short,
        [
            ["admin", "CordonNode", "Node", "a", "OK"],
            ["admin", "UncordonNode", "Node", "b", "NotFound"],
            ["admin", "DrainNode", "Node", "a", "OK"],
        ]
    );
    assert_eq!(lines[0]["revision"], cordoned.metadata.unwrap().resource_version);
}

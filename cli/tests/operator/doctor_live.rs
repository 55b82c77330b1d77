//! `muster doctor --live`: what it finds in a fleet that runs.

use muster_proto::pb;

use crate::fake_controller::{FakeController, Responses};
use crate::harness::Harness;

fn wire(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

/// A controller that leads, with this grace period.
async fn controller(grace: i64) -> FakeController {
    let settings = pb::ControllerSettings {
        node_monitor_period: wire(5),
        node_monitor_grace_period: wire(grace),
        node_eviction_rate: 0.1,
        secondary_node_eviction_rate: 0.01,
        unhealthy_zone_threshold: 0.55,
        large_cluster_size_threshold: 50,
        leader_elect: true,
        ..Default::default()
    };
    let zone = |name: &str| pb::FleetZone { name: name.to_owned(), ..Default::default() };
    let fleet = pb::Fleet {
        controller: "c1".to_owned(),
        leader: "c1".to_owned(),
        state: pb::FleetState::Normal.into(),
        nodes: 2,
        ready_nodes: 2,
        zones: vec![zone("a"), zone("b")],
        ..Default::default()
    };
    FakeController::start(Responses { fleet, settings: Some(settings), ..Default::default() }).await
}

/// The leader's lease, and a node whose agent holds a lease of 40 s.
const RECORDS: &str = "\
{kind: Node, apiVersion: v1, metadata: {name: n1}}
---
{kind: Lease, apiVersion: v1, metadata: {name: n1}, spec: {holderIdentity: n1, leaseDurationSeconds: 40}}
---
{kind: Lease, apiVersion: v1, metadata: {name: muster-controller, namespace: kube-system},
 spec: {holderIdentity: c1, leaseDurationSeconds: 15, acquireTime: '2026-01-01T00:00:00Z'}}
";

async fn fleet(grace: i64) -> (Harness, FakeController) {
    let mut harness = Harness::with_store().await;
    let controller = controller(grace).await;
    harness.set_env("MUSTER_CONTROLLER", controller.url.clone());
    harness.muster_with_stdin("apply -f -", RECORDS).await.ok();
    (harness, controller)
}

#[tokio::test(flavor = "multi_thread")]
async fn s220_the_doctor_asks_a_fleet_that_runs_and_names_its_leaders() {
    let (harness, _controller) = fleet(40).await;
    let report = harness.muster("doctor --live").await.ok();
    for expected in [
        "store        http://127.0.0.1:",
        "(embedded), revision",
        "leads for",
        "Disk of the store",
        "Leases of agents       40s (1)",
        "--node-monitor-grace-period=40s",
        "is Unknown after",
    ] {
        assert!(report.contains(expected), "no {expected}: {report}");
    }
    let document = harness.muster("doctor --live -o json").await.ok();
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    let [store, controller] = document["servers"].as_array().unwrap().as_slice() else {
        panic!("two servers: {document}")
    };
    assert_eq!((&store["component"], &store["leads"]), (&"store".into(), &true.into()));
    assert_eq!(store["version"], env!("CARGO_PKG_VERSION"));
    assert!(store["disk"]["totalBytes"].as_u64().unwrap() > 0, "{store}");
    assert_eq!(store["clockOffset"], 0.0, "one machine has one clock: {store}");
    assert_eq!(controller["settings"]["node-eviction-rate"], "0.1");
    assert_eq!(document["leader"]["identity"], "c1");
    assert!(document["findings"].as_array().unwrap().iter().all(|it| it["level"] != "broken"), "{document}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s221_the_doctor_names_each_address_that_is_wrong() {
    let (mut harness, controller) = fleet(40).await;
    let store = harness.url();
    let gone = format!("doctor --live --store {store},http://127.0.0.1:1 --agent http://127.0.0.1:2");
    let report = harness.muster(&gone).await;
    for expected in [
        "broken: the store at http://127.0.0.1:1 cannot be reached",
        "broken: the agent at http://127.0.0.1:2 cannot be reached",
        "leads for",
    ] {
        assert!(report.out.contains(expected), "no {expected}: {}", report.out);
    }
    report.failed(6);

    let swapped = format!("doctor --live --store {} --controller {store}", controller.url);
    let report = harness.muster(&swapped).await;
    for expected in [
        format!("broken: the server at {} is not a store", controller.url),
        format!("broken: the server at {store} is not a controller"),
    ] {
        assert!(report.out.contains(&expected), "no {expected}: {}", report.out);
    }
    report.failed(1);

    harness.muster("certs pki admin").await.ok();
    let flags = "--tls-ca pki/ca.crt --tls-cert pki/admin.crt --tls-key pki/admin.key";
    let https = |url: &str| url.replace("http://127.0.0.1", "https://localhost");
    let (tls_store, tls_controller) = (https(&store), https(&controller.url));
    let report = harness
        .muster(&format!("doctor --live --store {tls_store} --controller {tls_controller} {flags}"))
        .await;
    let expected = format!("broken: the store at {tls_store} does not use TLS, but the address is https://");
    assert!(report.out.contains(&expected), "no {expected}: {}", report.out);
    report.failed(6);
    harness.stop_store().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s222_the_doctor_compares_the_controllers_flags_with_the_agents_leases() {
    let (harness, _controller) = fleet(30).await;
    let report = harness.muster("doctor --live").await;
    let expected = "unsafe: a node is Unknown after 30s although its lease is valid for 40s";
    assert!(report.out.contains(expected), "{}", report.out);
    report.failed(1);
    let wrong = harness.muster("doctor --live --nodes 5").await.conflicting_arguments();
    assert!(wrong.contains("--nodes"), "{wrong}");
    let wrong = harness.muster("doctor --agent http://127.0.0.1:7600").await;
    assert_eq!(wrong.code, 2, "{}", wrong.err);
}

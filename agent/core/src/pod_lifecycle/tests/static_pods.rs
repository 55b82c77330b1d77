//! Static pods: they run without the store, which shows them by mirrors.

use muster_proto::pod::{Pod, PodPhase};
use muster_proto::wellknown::annotation;

use crate::testing::harness::Harness;
use crate::testing::{PodBuilder, pod, uid};

/// A pod as a file of the node has it.
fn from_file(name: &str) -> PodBuilder {
    pod(name).unstored().source("file")
}

/// A node with these static pods, which the agent has not observed yet.
fn with_files(files: impl IntoIterator<Item = PodBuilder>) -> Harness {
    let mut harness = Harness::bare([]);
    harness.files = files.into_iter().map(PodBuilder::build).collect();
    harness
}

fn mirror(harness: &Harness) -> &Pod {
    assert_eq!(harness.store.len(), 1, "{:?}", harness.store.keys());
    harness.store.values().next().unwrap()
}

#[test]
fn s212_a_static_pod_runs_without_the_store_and_is_shown_in_it_later() {
    let mut harness = with_files([from_file("a")]);
    harness.is_connected = false;
    harness.is_accepted = false;
    harness.look();
    assert_eq!(harness.steps(), ["start a/main#0"]);
    assert!(harness.runtime.contains_key(&uid("a")));

    harness.is_connected = true;
    harness.is_accepted = true;
    harness.look();
    assert_eq!(harness.steps(), ["mirror a", "report a Running ready"]);
    let mirror = mirror(&harness);
    assert_eq!(mirror.meta.annotations[annotation::MIRROR], uid("a").to_string());
    let owner = mirror.meta.controller().unwrap();
    assert_eq!((owner.kind.as_str(), owner.uid.clone()), ("Node", uid("node").to_string()));
    assert!(mirror.is_ready());
    assert_eq!(harness.steps(), [""; 0]);
}

#[test]
fn s212_a_static_pod_goes_with_its_file_and_its_mirror_after_it() {
    let mut harness = with_files([from_file("a").grace(5)]);
    harness.look();
    harness.settle();
    harness.files.clear();
    harness.look();
    harness.log.clear();
    assert_eq!(harness.steps(), ["term a/main"]);
    assert_eq!(harness.store.len(), 1, "it is shown as long as it runs");
    harness.exits("a", "main", 0);
    assert_eq!(harness.steps(), ["release a", "unmirror a"]);
    assert!(harness.store.is_empty() && harness.runtime.is_empty());
}

#[test]
fn s212_a_changed_file_replaces_the_pod_once_the_old_one_has_stopped() {
    let mut harness = with_files([from_file("a")]);
    harness.look();
    harness.settle();
    let mut changed = from_file("a").priority(7).build();
    changed.meta.uid = Some(uid("a2"));
    harness.files = vec![changed];
    harness.look();
    harness.log.clear();
    assert_eq!(harness.steps(), ["term a/main"], "the new one waits");
    harness.exits("a", "main", 0);
    assert_eq!(
        harness.steps(),
        ["release a", "start a/main#0", "unmirror a", "mirror a", "report a Running ready"]
    );
    assert_eq!(mirror(&harness).meta.annotations[annotation::MIRROR], uid("a2").to_string());
}

#[test]
fn s212_deleting_a_mirror_does_not_stop_its_static_pod() {
    let mut harness = with_files([from_file("a")]);
    harness.look();
    harness.settle();
    let before = mirror(&harness).meta.uid;
    for record in harness.store.values_mut() {
        record.meta.deletion_timestamp = Some(jiff::Timestamp::UNIX_EPOCH);
        record.meta.resource_version += 100;
    }
    harness.look();
    harness.log.clear();
    assert_eq!(harness.steps(), ["unmirror a", "mirror a", "report a Running ready"]);
    assert_ne!(mirror(&harness).meta.uid, before);
}

#[test]
fn s213_a_mirror_without_a_static_pod_is_never_run_and_goes_when_it_is_deleted() {
    let mut harness = Harness::with([pod("a").mirror(), pod("b").source("file").mirror()]);
    assert_eq!(harness.steps(), [""; 0], "what somebody annotated is left alone");
    harness.delete("a", 30);
    assert_eq!(harness.steps(), ["unmirror a"]);
    assert_eq!(harness.store.keys().copied().collect::<Vec<_>>(), [uid("b")]);
    harness.restart_agent();
    assert_eq!(harness.steps(), [""; 0]);
}

#[test]
fn s212_the_next_agent_keeps_static_pods_running_and_removes_mirrors_whose_file_went() {
    let mut harness = with_files([from_file("a"), from_file("b").grace(5)]);
    harness.look();
    harness.settle();
    harness.files.pop();
    harness.log.clear();
    harness.restart_agent();
    assert_eq!(harness.steps(), ["term orphan/main", "unmirror b"], "nothing shows the record of b any more");
    assert_eq!(mirror(&harness).meta.name, "a");
    assert!(mirror(&harness).is_ready(), "a runs on");
}

#[test]
fn s212_a_static_pod_that_a_shutdown_failed_runs_again_after_the_boot() {
    let mut harness = with_files([from_file("a")]);
    harness.look();
    harness.settle();
    for record in harness.store.values_mut() {
        record.status.phase = PodPhase::Failed;
        record.meta.resource_version += 100;
    }
    harness.reboot();
    harness.log.clear();
    let steps = harness.steps();
    assert!(steps.contains(&"start a/main#1".to_owned()), "{steps:?}");
    assert!(steps.contains(&"unmirror a".to_owned()), "a final phase cannot be changed: {steps:?}");
    assert_eq!(mirror(&harness).status.phase, PodPhase::Running);
}

#[test]
fn s212_events_of_a_static_pod_wait_for_its_mirror() {
    let mut harness = with_files([from_file("a")]);
    harness.is_connected = false;
    harness.look();
    harness.settle();
    assert_eq!(harness.events(), [""; 0], "the store would refuse them");
    harness.is_connected = true;
    harness.look();
    harness.settle();
    assert_eq!(harness.events(), ["Started: Started container main"]);
}

#[test]
fn static_pods_are_admitted_before_others() {
    let mut harness = with_files([from_file("s").requests("cpu=3")]);
    let other = pod("o").requests("cpu=3").build();
    harness.store.insert(other.meta.uid.unwrap(), other);
    harness.look();
    harness.settle();
    assert_eq!(harness.stored("o").status.reason, "OutOfcpu");
}

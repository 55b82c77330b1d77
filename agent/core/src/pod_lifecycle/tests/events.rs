//! The events of pods, in the kubelet's words.

use std::time::Duration;

use muster_proto::event::EventType;
use muster_proto::pod::RestartPolicy;

use crate::pod_lifecycle::PodTermination;
use crate::testing::harness::Harness;
use crate::testing::{ContainerBuilder, container, pod, uid};

const STARTED: &str = "Started: Started container main";
const KILLING: &str = "Killing: Stopping container main";

fn back_off(container: &str) -> String {
    format!("BackOff: Back-off restarting failed container {container} in pod a_default({})", uid("a"))
}

#[test]
fn a_container_that_keeps_failing_has_an_event_for_each_start_and_each_back_off() {
    let mut harness = Harness::with([pod("a")]);
    harness.settle();
    assert_eq!(harness.events(), [STARTED]);
    harness.exits("a", "main", 1);
    harness.settle();
    assert_eq!(harness.events(), [STARTED], "the first restart does not wait");
    for delay in [10, 20] {
        harness.exits("a", "main", 1);
        harness.settle();
        harness.advance(delay - 1);
        harness.settle();
        assert_eq!(harness.events(), [back_off("main")], "once for a delay of {delay} s");
        harness.advance(1);
        harness.settle();
        assert_eq!(harness.events(), [STARTED]);
    }
}

#[test]
fn an_event_names_its_pod_and_the_agent() {
    let mut harness = Harness::with([pod("a")]);
    harness.settle();
    let event = harness.pod_states.take_events().remove(0);
    assert_eq!((event.involved.name.as_str(), event.involved.uid), ("a", Some(uid("a"))));
    assert_eq!((event.kind, event.source_component.as_str()), (EventType::Normal, "agent"));
}

#[test]
fn a_container_that_is_not_restarted_does_not_back_off() {
    let inits = vec![container("init")];
    let mut harness = Harness::with([pod("a").inits(inits).restart(RestartPolicy::OnFailure)]);
    harness.settle();
    for code in [1, 0] {
        harness.exits("a", "init", code);
        harness.settle();
    }
    let started = "Started: Started container init";
    assert_eq!(
        harness.events(),
        [started, started, STARTED],
        "the second run of the init container succeeded"
    );
    harness.exits("a", "main", 0);
    harness.settle();
    assert_eq!(harness.events(), [""; 0]);
}

#[test]
fn a_start_that_fails_has_an_event_with_its_error() {
    let mut harness = Harness::with([pod("a")]);
    harness.unstartable.push("main".to_owned());
    harness.settle();
    assert_eq!(harness.events(), ["Failed: Error: no such program".to_owned(), back_off("main")]);
}

#[test]
fn a_stop_has_one_event_for_each_container_however_many_signals_it_takes() {
    let mains = vec![container("main").hook(), container("other")];
    let mut harness = Harness::with([pod("a").containers(mains)]);
    harness.settle();
    harness.events();
    harness.delete("a", 5);
    harness.settle();
    assert_eq!(harness.events(), [KILLING, "Killing: Stopping container other"]);
    harness.pod_states.hook_ended(uid("a"), "main");
    harness.settle();
    harness.advance(5);
    harness.settle();
    assert!(harness.store.is_empty());
    assert_eq!(harness.events(), [""; 0], "TERM and KILL belong to the stop that began with the hook");
}

#[test]
fn a_pod_that_the_node_terminates_is_stopped_with_an_event() {
    let mut harness = Harness::with([pod("a")]);
    harness.settle();
    harness.events();
    let termination = PodTermination {
        reason: "Evicted".to_owned(),
        message: "The node was low on memory.".to_owned(),
        grace: Duration::from_secs(1),
        is_disruption: true,
    };
    harness.pod_states.terminate(uid("a"), termination, harness.now());
    harness.settle();
    assert_eq!(harness.events(), [KILLING]);
}

#[test]
fn a_rejected_pod_has_an_event_with_the_reason() {
    let mut harness = Harness::with([pod("a").requests("cpu=5")]);
    harness.settle();
    let message = "Pod was rejected: it asks for 5 cpu, of 4 the node has given away 0";
    assert_eq!(harness.events(), [format!("OutOfcpu: {message}")]);
}

#[test]
fn an_agent_that_does_not_act_for_the_node_records_nothing() {
    let mut harness = Harness::with([pod("a")]);
    harness.settle();
    harness.events();
    harness.is_accepted = false;
    harness.look();
    harness.delete("a", 5);
    harness.settle();
    assert_eq!(harness.events(), [""; 0]);
    harness.is_accepted = true;
    harness.look();
    assert_eq!(harness.events(), [""; 0], "not even later");
}

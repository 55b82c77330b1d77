//! After any sequence of events the node settles, and every pod stops in the right order.

use muster_proto::pod::RestartPolicy;
use proptest::prelude::*;

use crate::pod_lifecycle::PodTermination;
use crate::testing::harness::{Harness, is_alive};
use crate::testing::{ContainerBuilder, PodBuilder, container, pod, uid};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

#[derive(Clone, Debug)]
enum Event {
    Exit(usize, usize, i32),
    Delete(usize, i64),
    Vanish(usize),
    End(usize),
    HookEnds(usize),
    Connect(bool),
    Freeze,
    Thaw,
    RestartAgent,
    Advance(u64),
    Touch(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let which = 0..NAMES.len();
    prop_oneof![
        (which.clone(), 0..4usize, 0..2i32)
            .prop_map(|(pod, container, code)| Event::Exit(pod, container, code)),
        (which.clone(), 1..40i64).prop_map(|(pod, grace)| Event::Delete(pod, grace)),
        which.clone().prop_map(Event::Vanish),
        which.clone().prop_map(Event::End),
        which.clone().prop_map(Event::HookEnds),
        any::<bool>().prop_map(Event::Connect),
        Just(Event::Freeze),
        Just(Event::Thaw),
        Just(Event::RestartAgent),
        (1..60u64).prop_map(Event::Advance),
        which.prop_map(Event::Touch),
    ]
}

fn shape() -> impl Strategy<Value = (usize, usize, bool)> {
    (0..3usize, 0..3usize, any::<bool>())
}

fn build(name: &str, (policy, inits, hook): (usize, usize, bool)) -> PodBuilder {
    let policies = [RestartPolicy::Always, RestartPolicy::OnFailure, RestartPolicy::Never];
    let main = if hook { container("main").hook() } else { container("main") };
    let all_inits = [container("i0").sidecar(), container("i1")];
    pod(name).restart(policies[policy]).inits(all_inits[..inits].to_vec()).containers(vec![main])
}

fn apply(harness: &mut Harness, event: &Event) {
    let named = |index: &usize| NAMES[*index];
    match event {
        Event::Exit(index, container, code) => {
            let alive: Vec<String> = harness
                .runtime
                .get(&uid(named(index)))
                .iter()
                .flat_map(|report| &report.containers)
                .filter(|(_, found)| is_alive(found))
                .map(|(name, _)| name.clone())
                .collect();
            if let Some(name) = alive.get(container % alive.len().max(1)) {
                harness.exits(named(index), name, *code);
            }
        }
        Event::Delete(index, grace) if harness.store.contains_key(&uid(named(index))) => {
            harness.delete(named(index), *grace);
        }
        Event::Touch(index) if harness.store.contains_key(&uid(named(index))) => {
            harness.write(named(index), |_| {});
        }
        Event::Delete(..) | Event::Touch(_) => {}
        Event::Vanish(index) => {
            harness.store.remove(&uid(named(index)));
        }
        Event::End(index) => {
            let termination = PodTermination {
                reason: "Evicted".to_owned(),
                message: String::new(),
                grace: std::time::Duration::from_secs(1),
                is_disruption: true,
            };
            harness.pod_states.terminate(uid(named(index)), termination, harness.now());
        }
        Event::HookEnds(index) => harness.pod_states.hook_ended(uid(named(index)), "main"),
        Event::Connect(is_connected) => harness.is_connected = *is_connected,
        Event::Freeze => harness.is_frozen = true,
        Event::Thaw => harness.answer(),
        Event::RestartAgent => harness.restart_agent(),
        Event::Advance(seconds) => harness.advance(*seconds),
    }
}

proptest! {
    /// The harness itself asserts that no action is planned twice at one instant, that there is one call of the store
    /// at a time for each pod, and that no record is deleted before its pod has stopped and its last status was posted.
    #[test]
    fn after_any_sequence_of_events_the_node_settles(
        shapes in proptest::collection::vec(shape(), NAMES.len()),
        events in proptest::collection::vec(event(), 0..40),
    ) {
        let mut harness = Harness::with(NAMES.iter().zip(shapes).map(|(name, shape)| build(name, shape)));
        for event in &events {
            apply(&mut harness, event);
            harness.look();
            harness.settle();
        }
        harness.is_connected = true;
        harness.answer();
        for _ in 0..60 {
            harness.settle();
            harness.advance(30);
        }
        for pod in harness.store.values() {
            prop_assert!(!pod.meta.is_deleting(), "{} is never deleted: {:?}", pod.meta.name, harness.log);
            let alive = harness.runtime.get(&pod.meta.uid.unwrap()).is_some_and(|report| {
                report.containers.values().any(is_alive)
            });
            prop_assert!(!(alive && pod.is_finished()), "{} ended and still runs", pod.meta.name);
        }
        for uid in harness.runtime.keys() {
            prop_assert!(harness.store.contains_key(uid), "a pod without a record is left");
        }
    }
}

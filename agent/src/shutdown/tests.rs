//! The machine shuts down: what happens to its pods, step by step.

use std::time::Duration;

use futures_util::FutureExt;
use muster_agent_core::resources::priority::SYSTEM_CRITICAL;
use muster_agent_core::shutdown_order::ShutdownStep;
use muster_agent_core::testing::harness::Harness;
use muster_agent_core::testing::pod;
use muster_proto::pod::PodPhase;
use muster_rpc::clock::SystemClock;
use muster_rpc::shutdown::Shutdown;

use super::{MachineShutdown, ShutdownError};
use crate::config::ShutdownConfig;

fn config(total: u64, critical: u64, on_sigterm: bool) -> ShutdownConfig {
    let [grace_period, critical_pods] = [total, critical].map(Duration::from_secs);
    ShutdownConfig { grace_period, critical_pods, by_pod_priority: Vec::new(), on_sigterm }
}

/// The state of an agent right after its process was told to end.
async fn requested(config: &ShutdownConfig) -> MachineShutdown {
    let request = Shutdown::new();
    request.trigger();
    let machine_shutdown = MachineShutdown::new(request, config);
    let running = machine_shutdown.clone().run(SystemClock::shared());
    assert!(running.now_or_never().is_none_or(|()| machine_shutdown.stop_signal().is_requested()));
    machine_shutdown
}

#[tokio::test]
async fn s069_s072_groups_stop_one_after_the_other_and_new_pods_are_rejected() {
    let mut harness = Harness::with([pod("normal"), pod("critical").priority(SYSTEM_CRITICAL)]);
    harness.settle();
    let machine_shutdown = requested(&config(30, 10, true)).await;
    let mut shutdown = machine_shutdown.node_shutdown(&harness.pod_states).unwrap();
    harness.node.facts.shutting_down = machine_shutdown.is_shutting_down();
    let late = pod("late").build();
    harness.store.insert(late.meta.uid.unwrap(), late);
    harness.look();

    let now = harness.now();
    assert_eq!(shutdown.step(&mut harness.pod_states, true, now), ShutdownStep::Act { pods: 1 });
    harness.settle();
    assert_eq!(harness.stored("late").status.reason, "NodeShutdown");
    let until = now.mono + Duration::from_secs(20);
    assert_eq!(shutdown.step(&mut harness.pod_states, true, now), ShutdownStep::Wait { until });

    harness.exits("normal", "main", 143);
    harness.look();
    harness.settle();
    let status = &harness.stored("normal").status;
    assert_eq!((status.phase, status.reason.as_str()), (PodPhase::Failed, "Terminated"));
    assert_eq!(harness.stored("critical").status.phase, PodPhase::Running, "its turn comes later");
    assert_eq!(shutdown.step(&mut harness.pod_states, true, now), ShutdownStep::Act { pods: 1 });
    harness.settle();

    // It does not exit by itself: it is killed when its time is over, and its last status is still waited for.
    harness.advance(10);
    let now = harness.now();
    let waits = shutdown.step(&mut harness.pod_states, true, now);
    assert!(matches!(waits, ShutdownStep::Wait { until } if until > now.mono), "{waits:?}");
    harness.settle();
    assert_eq!(shutdown.step(&mut harness.pod_states, true, now), ShutdownStep::Done);
    assert_eq!(harness.stored("critical").status.reason, "Terminated");
}

#[test]
fn s069_the_node_is_posted_not_ready_before_its_pods_are_stopped() {
    let mut harness = Harness::with([pod("a")]);
    harness.settle();
    let machine_shutdown = MachineShutdown::new(Shutdown::new(), &config(30, 10, false));
    let now = harness.now();
    machine_shutdown.begin(now.wall).unwrap();
    let shutdown = machine_shutdown.node_shutdown(&harness.pod_states).unwrap();
    let until = now.mono + Duration::from_secs(1);
    let mut posted = shutdown.clone();
    assert_eq!(posted.step(&mut harness.pod_states, false, now), ShutdownStep::Wait { until });
    assert_eq!(posted.step(&mut harness.pod_states, true, now), ShutdownStep::Act { pods: 1 });

    let mut unposted = shutdown;
    assert_eq!(unposted.step(&mut harness.pod_states, false, now), ShutdownStep::Wait { until });
    harness.advance(1);
    let now = harness.now();
    assert_eq!(
        unposted.step(&mut harness.pod_states, false, now),
        ShutdownStep::Act { pods: 1 },
        "a store that cannot be reached is not waited for"
    );
}

#[tokio::test]
async fn s070_an_agent_that_is_only_replaced_stops_nothing() {
    let mut harness = Harness::with([pod("a")]);
    harness.settle();
    for off in [config(30, 10, false), config(30, 40, true), config(0, 0, true)] {
        let machine_shutdown = requested(&off).await;
        assert!(
            machine_shutdown.node_shutdown(&harness.pod_states).is_none()
                && !machine_shutdown.is_shutting_down(),
            "{off:?}"
        );
        assert!(machine_shutdown.stop_signal().is_requested(), "its loops end at once: {off:?}");
    }
    assert!(!requested(&config(30, 10, true)).await.stop_signal().is_requested());
}

#[test]
fn a_cancelled_shutdown_stops_no_group_whose_turn_had_not_come() {
    let mut harness = Harness::with([pod("normal"), pod("critical").priority(SYSTEM_CRITICAL)]);
    harness.settle();
    // Signals do not mean a shutdown here: only BeginShutdown does.
    let machine_shutdown = MachineShutdown::new(Shutdown::new(), &config(30, 10, false));
    let now = harness.now();
    assert_eq!(machine_shutdown.begin(now.wall), Ok((now.wall, Duration::from_secs(30))));
    harness.advance(1);
    assert_eq!(
        machine_shutdown.begin(harness.now().wall),
        Ok((now.wall, Duration::from_secs(30))),
        "it has begun before"
    );
    let mut shutdown = machine_shutdown.node_shutdown(&harness.pod_states).unwrap();
    assert_eq!(shutdown.step(&mut harness.pod_states, true, now), ShutdownStep::Act { pods: 1 });
    harness.settle();

    assert_eq!(machine_shutdown.cancel(), Ok(Some(now.wall)));
    assert_eq!(machine_shutdown.cancel(), Ok(None), "there is nothing more to cancel");
    assert!(
        !machine_shutdown.is_shutting_down() && machine_shutdown.node_shutdown(&harness.pod_states).is_none()
    );
    let late = pod("late").build();
    harness.store.insert(late.meta.uid.unwrap(), late);
    harness.look();
    harness.advance(30);
    harness.settle();
    let phase = |name: &str| harness.stored(name).status.phase;
    assert_eq!(phase("normal"), PodPhase::Failed, "it was already stopping");
    assert_eq!((phase("critical"), phase("late")), (PodPhase::Running, PodPhase::Running));
}

#[tokio::test]
async fn a_shutdown_that_cannot_be_begun_or_cancelled_is_an_error() {
    let now = Harness::with([]).now().wall;
    for off in [config(0, 0, true), config(30, 40, true)] {
        assert_eq!(
            MachineShutdown::new(Shutdown::new(), &off).begin(now),
            Err(ShutdownError::NotGraceful),
            "{off:?}"
        );
    }
    let signalled = requested(&config(30, 10, true)).await;
    assert_eq!(signalled.cancel(), Err(ShutdownError::Signalled));
    assert!(signalled.is_shutting_down());
}

//! The machine goes down: what becomes of its pods, step by step.

use std::time::Duration;

use futures_util::FutureExt;
use muster_agent_core::resources::priority::SYSTEM_CRITICAL;
use muster_agent_core::testing::harness::Harness;
use muster_agent_core::testing::pod;
use muster_proto::pod::PodPhase;
use muster_rpc::clock::SystemClock;
use muster_rpc::shutdown::Shutdown;

use super::{MachineShutdown, Next, Refused};
use crate::config::ShutdownConfig;

fn config(total: u64, critical: u64, on_sigterm: bool) -> ShutdownConfig {
    let [grace_period, critical_pods] = [total, critical].map(Duration::from_secs);
    ShutdownConfig { grace_period, critical_pods, by_pod_priority: Vec::new(), on_sigterm }
}

/// An agent that was told to stop, as far as it then is.
async fn asked(config: &ShutdownConfig) -> MachineShutdown {
    let asked = Shutdown::new();
    asked.trigger();
    let machine_shutdown = MachineShutdown::new(asked, config);
    let obeying = machine_shutdown.clone().run(SystemClock::shared());
    assert!(obeying.now_or_never().is_none_or(|()| machine_shutdown.stop_signal().is_requested()));
    machine_shutdown
}

#[tokio::test]
async fn s069_s072_groups_end_one_after_the_other_and_newcomers_are_turned_away() {
    let mut harness = Harness::with([pod("normal"), pod("critical").priority(SYSTEM_CRITICAL)]);
    harness.settle();
    let machine_shutdown = asked(&config(30, 10, true)).await;
    let mut departure = machine_shutdown.departure(&harness.pod_states).unwrap();
    harness.node.facts.shutting_down = machine_shutdown.is_shutting_down();
    let late = pod("late").build();
    harness.store.insert(late.meta.uid.unwrap(), late);
    harness.look();

    let now = harness.now();
    assert_eq!(departure.step(&mut harness.pod_states, true, now), Next::Act);
    harness.settle();
    assert_eq!(harness.stored("late").status.reason, "NodeShutdown");
    let until = now.mono + Duration::from_secs(20);
    assert_eq!(departure.step(&mut harness.pod_states, true, now), Next::Wait { until });

    harness.exits("normal", "main", 143);
    harness.look();
    harness.settle();
    let status = &harness.stored("normal").status;
    assert_eq!((status.phase, status.reason.as_str()), (PodPhase::Failed, "Terminated"));
    assert_eq!(harness.stored("critical").status.phase, PodPhase::Running, "its turn comes later");
    assert_eq!(departure.step(&mut harness.pod_states, true, now), Next::Act);
    harness.settle();

    // It does not go by itself: it is killed when its time is over, and its end is still waited for.
    harness.advance(10);
    let now = harness.now();
    let waits = departure.step(&mut harness.pod_states, true, now);
    assert!(matches!(waits, Next::Wait { until } if until > now.mono), "{waits:?}");
    harness.settle();
    assert_eq!(departure.step(&mut harness.pod_states, true, now), Next::Over);
    assert_eq!(harness.stored("critical").status.reason, "Terminated");
}

#[test]
fn s069_the_node_is_said_not_to_be_ready_before_its_pods_are_told_to_end() {
    let mut harness = Harness::with([pod("a")]);
    harness.settle();
    let machine_shutdown = MachineShutdown::new(Shutdown::new(), &config(30, 10, false));
    let now = harness.now();
    machine_shutdown.begin(now.wall).unwrap();
    let departure = machine_shutdown.departure(&harness.pod_states).unwrap();
    let until = now.mono + Duration::from_secs(1);
    let mut told = departure.clone();
    assert_eq!(told.step(&mut harness.pod_states, false, now), Next::Wait { until });
    assert_eq!(told.step(&mut harness.pod_states, true, now), Next::Act);

    let mut unheard = departure;
    assert_eq!(unheard.step(&mut harness.pod_states, false, now), Next::Wait { until });
    harness.advance(1);
    let now = harness.now();
    assert_eq!(
        unheard.step(&mut harness.pod_states, false, now),
        Next::Act,
        "a store that is away is not waited for"
    );
}

#[tokio::test]
async fn s070_an_agent_that_is_only_replaced_stops_nothing() {
    let mut harness = Harness::with([pod("a")]);
    harness.settle();
    for off in [config(30, 10, false), config(30, 40, true), config(0, 0, true)] {
        let machine_shutdown = asked(&off).await;
        assert!(
            machine_shutdown.departure(&harness.pod_states).is_none() && !machine_shutdown.is_shutting_down(),
            "{off:?}"
        );
        assert!(machine_shutdown.stop_signal().is_requested(), "its loops end at once: {off:?}");
    }
    assert!(!asked(&config(30, 10, true)).await.stop_signal().is_requested());
}

#[test]
fn a_shutdown_that_is_cancelled_ends_nobody_whose_turn_had_not_come() {
    let mut harness = Harness::with([pod("normal"), pod("critical").priority(SYSTEM_CRITICAL)]);
    harness.settle();
    // Not by signal: only the platform's word counts.
    let machine_shutdown = MachineShutdown::new(Shutdown::new(), &config(30, 10, false));
    let now = harness.now();
    assert_eq!(machine_shutdown.begin(now.wall), Ok((now.wall, Duration::from_secs(30))));
    harness.advance(1);
    assert_eq!(
        machine_shutdown.begin(harness.now().wall),
        Ok((now.wall, Duration::from_secs(30))),
        "it is under way"
    );
    let mut departure = machine_shutdown.departure(&harness.pod_states).unwrap();
    assert_eq!(departure.step(&mut harness.pod_states, true, now), Next::Act);
    harness.settle();

    assert_eq!(machine_shutdown.cancel(), Ok(Some(now.wall)));
    assert_eq!(machine_shutdown.cancel(), Ok(None), "there is nothing more to cancel");
    assert!(
        !machine_shutdown.is_shutting_down() && machine_shutdown.departure(&harness.pod_states).is_none()
    );
    let late = pod("late").build();
    harness.store.insert(late.meta.uid.unwrap(), late);
    harness.look();
    harness.advance(30);
    harness.settle();
    let phase = |name: &str| harness.stored(name).status.phase;
    assert_eq!(phase("normal"), PodPhase::Failed, "it had been told to end");
    assert_eq!((phase("critical"), phase("late")), (PodPhase::Running, PodPhase::Running));
}

#[tokio::test]
async fn what_cannot_be_begun_or_taken_back_is_refused() {
    let now = Harness::with([]).now().wall;
    for off in [config(0, 0, true), config(30, 40, true)] {
        assert_eq!(
            MachineShutdown::new(Shutdown::new(), &off).begin(now),
            Err(Refused::NotGraceful),
            "{off:?}"
        );
    }
    let signalled = asked(&config(30, 10, true)).await;
    assert_eq!(signalled.cancel(), Err(Refused::Signalled));
    assert!(signalled.is_shutting_down());
}

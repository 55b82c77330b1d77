//! The machine goes down: what becomes of its pods, step by step.

use std::time::Duration;

use futures_util::FutureExt;
use muster_agent_core::resources::priority::SYSTEM_CRITICAL;
use muster_agent_core::testing::harness::Bench;
use muster_agent_core::testing::pod;
use muster_proto::pod::PodPhase;
use muster_rpc::clock::SystemClock;
use muster_rpc::shutdown::Shutdown;

use super::{Leave, Next, Refused};
use crate::config::ShutdownConfig;

fn config(total: u64, critical: u64, on_sigterm: bool) -> ShutdownConfig {
    let [grace_period, critical_pods] = [total, critical].map(Duration::from_secs);
    ShutdownConfig { grace_period, critical_pods, by_pod_priority: Vec::new(), on_sigterm }
}

/// An agent that was told to stop, as far as it then is.
async fn asked(config: &ShutdownConfig) -> Leave {
    let asked = Shutdown::new();
    asked.trigger();
    let leave = Leave::new(asked, config);
    let obeying = leave.clone().obey(SystemClock::shared());
    assert!(obeying.now_or_never().is_none_or(|()| leave.over().is_requested()));
    leave
}

#[tokio::test]
async fn s069_s072_groups_end_one_after_the_other_and_newcomers_are_turned_away() {
    let mut bench = Bench::with([pod("normal"), pod("critical").priority(SYSTEM_CRITICAL)]);
    bench.settle();
    let leave = asked(&config(30, 10, true)).await;
    let mut departure = leave.departure(&bench.ledger).unwrap();
    bench.node.site.shutting_down = leave.is_shutting_down();
    let late = pod("late").build();
    bench.store.insert(late.meta.uid.unwrap(), late);
    bench.look();

    let now = bench.now();
    assert_eq!(departure.step(&mut bench.ledger, true, now), Next::Act);
    bench.settle();
    assert_eq!(bench.stored("late").status.reason, "NodeShutdown");
    let until = now.mono + Duration::from_secs(20);
    assert_eq!(departure.step(&mut bench.ledger, true, now), Next::Wait { until });

    bench.exits("normal", "main", 143);
    bench.look();
    bench.settle();
    let status = &bench.stored("normal").status;
    assert_eq!((status.phase, status.reason.as_str()), (PodPhase::Failed, "Terminated"));
    assert_eq!(bench.stored("critical").status.phase, PodPhase::Running, "its turn comes later");
    assert_eq!(departure.step(&mut bench.ledger, true, now), Next::Act);
    bench.settle();

    // It does not go by itself: it is killed when its time is over, and its end is still waited for.
    bench.advance(10);
    let now = bench.now();
    let waits = departure.step(&mut bench.ledger, true, now);
    assert!(matches!(waits, Next::Wait { until } if until > now.mono), "{waits:?}");
    bench.settle();
    assert_eq!(departure.step(&mut bench.ledger, true, now), Next::Over);
    assert_eq!(bench.stored("critical").status.reason, "Terminated");
}

#[test]
fn s069_the_node_is_said_not_to_be_ready_before_its_pods_are_told_to_end() {
    let mut bench = Bench::with([pod("a")]);
    bench.settle();
    let leave = Leave::new(Shutdown::new(), &config(30, 10, false));
    let now = bench.now();
    leave.begin(now.wall).unwrap();
    let departure = leave.departure(&bench.ledger).unwrap();
    let until = now.mono + Duration::from_secs(1);
    let mut told = departure.clone();
    assert_eq!(told.step(&mut bench.ledger, false, now), Next::Wait { until });
    assert_eq!(told.step(&mut bench.ledger, true, now), Next::Act);

    let mut unheard = departure;
    assert_eq!(unheard.step(&mut bench.ledger, false, now), Next::Wait { until });
    bench.advance(1);
    let now = bench.now();
    assert_eq!(
        unheard.step(&mut bench.ledger, false, now),
        Next::Act,
        "a store that is away is not waited for"
    );
}

#[tokio::test]
async fn s070_an_agent_that_is_only_replaced_stops_nothing() {
    let mut bench = Bench::with([pod("a")]);
    bench.settle();
    for off in [config(30, 10, false), config(30, 40, true), config(0, 0, true)] {
        let leave = asked(&off).await;
        assert!(leave.departure(&bench.ledger).is_none() && !leave.is_shutting_down(), "{off:?}");
        assert!(leave.over().is_requested(), "its loops end at once: {off:?}");
    }
    assert!(!asked(&config(30, 10, true)).await.over().is_requested());
}

#[test]
fn a_shutdown_that_is_cancelled_ends_nobody_whose_turn_had_not_come() {
    let mut bench = Bench::with([pod("normal"), pod("critical").priority(SYSTEM_CRITICAL)]);
    bench.settle();
    // Not by signal: only the platform's word counts.
    let leave = Leave::new(Shutdown::new(), &config(30, 10, false));
    let now = bench.now();
    assert_eq!(leave.begin(now.wall), Ok((now.wall, Duration::from_secs(30))));
    bench.advance(1);
    assert_eq!(leave.begin(bench.now().wall), Ok((now.wall, Duration::from_secs(30))), "it is under way");
    let mut departure = leave.departure(&bench.ledger).unwrap();
    assert_eq!(departure.step(&mut bench.ledger, true, now), Next::Act);
    bench.settle();

    assert_eq!(leave.cancel(), Ok(Some(now.wall)));
    assert_eq!(leave.cancel(), Ok(None), "there is nothing more to cancel");
    assert!(!leave.is_shutting_down() && leave.departure(&bench.ledger).is_none());
    let late = pod("late").build();
    bench.store.insert(late.meta.uid.unwrap(), late);
    bench.look();
    bench.advance(30);
    bench.settle();
    let phase = |name: &str| bench.stored(name).status.phase;
    assert_eq!(phase("normal"), PodPhase::Failed, "it had been told to end");
    assert_eq!((phase("critical"), phase("late")), (PodPhase::Running, PodPhase::Running));
}

#[tokio::test]
async fn what_cannot_be_begun_or_taken_back_is_refused() {
    let now = Bench::with([]).now().wall;
    for off in [config(0, 0, true), config(30, 40, true)] {
        assert_eq!(Leave::new(Shutdown::new(), &off).begin(now), Err(Refused::NotGraceful), "{off:?}");
    }
    let signalled = asked(&config(30, 10, true)).await;
    assert_eq!(signalled.cancel(), Err(Refused::Signalled));
    assert!(signalled.is_shutting_down());
}

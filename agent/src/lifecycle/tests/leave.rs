//! The machine goes down: what becomes of its pods, step by step.

use std::time::Duration;

use muster_proto::pod::PodPhase;
use muster_rpc::shutdown::Shutdown;

use super::bench::Bench;
use crate::config::ShutdownConfig;
use crate::leave::{Leave, Next};
use crate::priority::SYSTEM_CRITICAL;
use crate::samples::pod;

fn config(total: u64, critical: u64, on_sigterm: bool) -> ShutdownConfig {
    let [grace_period, critical_pods] = [total, critical].map(Duration::from_secs);
    ShutdownConfig { grace_period, critical_pods, by_pod_priority: Vec::new(), on_sigterm }
}

fn asked(config: &ShutdownConfig) -> Leave {
    let asked = Shutdown::new();
    asked.trigger();
    Leave::new(asked, config)
}

#[test]
fn s069_s072_groups_end_one_after_the_other_and_newcomers_are_turned_away() {
    let mut bench = Bench::with([pod("normal"), pod("critical").priority(SYSTEM_CRITICAL)]);
    bench.settle();
    let leave = asked(&config(30, 10, true));
    let mut departure = leave.departure(&bench.ledger).unwrap();
    bench.node.site.shutting_down = leave.is_shutting_down();
    let late = pod("late").build();
    bench.store.insert(late.meta.uid.unwrap(), late);
    bench.look();

    let now = bench.now();
    assert_eq!(departure.step(&mut bench.ledger, now), Next::Act);
    bench.settle();
    assert_eq!(bench.stored("late").status.reason, "NodeShutdown");
    let until = now.mono + Duration::from_secs(20);
    assert_eq!(departure.step(&mut bench.ledger, now), Next::Wait { until });

    bench.exits("normal", "main", 143);
    bench.look();
    bench.settle();
    let status = &bench.stored("normal").status;
    assert_eq!((status.phase, status.reason.as_str()), (PodPhase::Failed, "Terminated"));
    assert_eq!(bench.stored("critical").status.phase, PodPhase::Running, "its turn comes later");
    assert_eq!(departure.step(&mut bench.ledger, now), Next::Act);
    bench.settle();

    // It does not go by itself: it is killed when its time is over, and its end is still waited for.
    bench.advance(10);
    let now = bench.now();
    let waits = departure.step(&mut bench.ledger, now);
    assert!(matches!(waits, Next::Wait { until } if until > now.mono), "{waits:?}");
    bench.settle();
    assert_eq!(departure.step(&mut bench.ledger, now), Next::Over);
    assert_eq!(bench.stored("critical").status.reason, "Terminated");
}

#[test]
fn s070_an_agent_that_is_only_replaced_stops_nothing() {
    let mut bench = Bench::with([pod("a")]);
    bench.settle();
    for off in [config(30, 10, false), config(30, 40, true), config(0, 0, true)] {
        let leave = asked(&off);
        assert!(leave.departure(&bench.ledger).is_none() && !leave.is_shutting_down(), "{off:?}");
        assert!(leave.over().is_requested(), "its loops end at once: {off:?}");
    }
    assert!(!asked(&config(30, 10, true)).over().is_requested());
}

//! Scenarios of the specification, by number.

use super::*;
use crate::drain::intent::{cordon, cordon_of, uncordon};

#[test]
fn s175_a_cordon_leaves_running_pods_alone() {
    let mut harness = Harness::with([managed("a"), pod("b")]);
    let of_eva = cordon_of("eva", "flaky", harness.now().wall, None);
    let cordoned = cordon(&harness.node(), of_eva.clone()).unwrap();
    harness.put_node(cordoned);
    harness.run_to(1000);
    assert_eq!((harness.log.len(), harness.here().as_str()), (0, "a b"));
    assert_eq!(harness.drains.progress(&harness.world, NODE, harness.now()), None);
    assert_eq!(cordon(&harness.node(), of_eva), None);
}

#[test]
fn s176_a_daemon_set_pod_refuses_the_drain_unless_daemon_sets_are_ignored() {
    let mut harness = Harness::with([managed("a"), pod("ds").owned_by("DaemonSet", "ds"), managed("b")]);
    harness.drain(DrainOptions::default(), None);
    assert_eq!(harness.progress(), "Refused a:Evict:Waiting b:Evict:Waiting ds:Refuse:Stays");
    harness.run_to(100);
    let (state, message) = harness.recorded();
    assert_eq!(state, DrainState::Failed);
    assert!(message.contains("default/ds") && message.contains("ignoreDaemonsets"), "{message}");
    assert_eq!((harness.log.len(), harness.here().as_str()), (0, "a b ds"), "no pod is evicted");
    assert!(harness.node().spec.unschedulable, "it stays cordoned");
    assert_eq!(harness.progress(), "Failed a:Evict:Stays b:Evict:Stays ds:Refuse:Stays");

    harness.drain(DrainOptions { ignore_daemonsets: true, ..DrainOptions::default() }, None);
    harness.run_to(200);
    assert_eq!(harness.log, ["100 evict a", "100 evict b"]);
    assert_eq!(harness.here(), "ds");
    let complete = "every pod that had to go has stopped; 1 left running";
    assert_eq!(harness.recorded(), (DrainState::Complete, complete.to_owned()));
    assert_eq!(
        harness.events,
        [
            "Draining: eva drains the node: new kernel".to_owned(),
            format!("DrainFailed: {message}"),
            "Draining: eva drains the node: new kernel".to_owned(),
            format!("DrainComplete: {complete}"),
        ]
    );
}

#[test]
fn s177_unmanaged_pods_need_force_and_empty_dir_data_its_own_option() {
    let pods = || [pod("bare"), managed("scratch").empty_dir(), pod("static").mirror(), managed("web")];
    let force = DrainOptions { force: true, ..DrainOptions::default() };
    let data = DrainOptions { delete_emptydir_data: true, ..DrainOptions::default() };
    for (options, expected) in [
        (DrainOptions::default(), Some("default/scratch (deleteEmptydirData")),
        (DrainOptions::default(), Some("default/bare (force")),
        (force, Some("default/scratch (deleteEmptydirData")),
        (data, Some("default/bare (force")),
        (DrainOptions { delete_emptydir_data: true, ..force }, None),
    ] {
        let mut harness = Harness::with(pods());
        harness.drain(options, None);
        harness.run_to(100);
        let (state, message) = harness.recorded();
        match expected {
            Some(expected) => {
                assert_eq!((state, harness.log.len()), (DrainState::Failed, 0), "{options:?}");
                assert!(message.contains(expected), "{message}");
            }
            None => {
                assert_eq!((state, harness.here().as_str()), (DrainState::Complete, "static"), "{message}");
                assert_eq!(harness.log, ["0 evict bare", "0 evict scratch", "0 evict web"]);
                assert!(message.ends_with("; 1 skipped"), "{message}");
            }
        }
    }
}

#[test]
fn s178_an_eviction_that_a_budget_blocks_is_retried_every_five_seconds() {
    let mut harness = Harness::with([managed("a"), managed("b")]);
    harness.refusals.insert(key("a"), budget("web needs 2 healthy, has 2"));
    harness.drain(DrainOptions::default(), None);
    harness.run_to(3);
    assert_eq!(harness.progress(), "Draining b:Evict:Gone a:Evict:Blocked");
    let progress = harness.drains.progress(&harness.world, NODE, harness.now()).unwrap();
    assert_eq!(progress.pods[1].reason, "web needs 2 healthy, has 2");
    assert_eq!(progress.pods[1].retry_at, Some(at(5).mono));
    assert_eq!(harness.drains.remaining(&harness.world, NODE, harness.now()), 1);
    harness.run_to(12);
    harness.refusals.clear();
    harness.run_to(20);
    assert_eq!(harness.log, ["0 evict a", "0 evict b", "5 evict a", "10 evict a", "15 evict a"]);
    assert_eq!((harness.recorded().0, harness.here().as_str()), (DrainState::Complete, ""));
    assert_eq!(harness.node().spec.drain.unwrap().finished_at, Some(at(16).wall), "done within 20 s");
}

#[test]
fn s178_a_budget_that_blocks_until_the_deadline_fails_the_drain() {
    let mut harness = Harness::with([managed("a"), managed("b")]);
    harness.refusals.insert(key("a"), budget("web needs 2 healthy, has 2"));
    harness.drain(DrainOptions::default(), Some(10));
    harness.run_to(12);
    harness.refusals.clear();
    harness.run_to(100);
    assert_eq!(harness.log, ["0 evict a", "0 evict b", "5 evict a"]);
    assert_eq!((harness.recorded().0, harness.here().as_str()), (DrainState::Failed, "a"));
    let drain = harness.node().spec.drain.unwrap();
    assert_eq!(drain.finished_at, Some(at(10).wall));
    let left = "the deadline has passed and 1 pod is left: default/a (web needs 2 healthy, has 2)";
    assert_eq!(drain.message, left);
    assert!(harness.node().spec.unschedulable);
    assert_eq!(harness.drains.under_way().count(), 0);
}

#[test]
fn s178_the_store_can_delay_the_retry_and_a_deletion_ignores_budgets() {
    let mut harness = Harness::with([managed("a")]);
    let retry_after = Some(Duration::from_secs(10));
    harness.refusals.insert(key("a"), Failure::Budget { message: "counting".to_owned(), retry_after });
    harness.drain(DrainOptions::default(), None);
    harness.run_to(19);
    assert_eq!(harness.log, ["0 evict a", "10 evict a"]);
    harness.drain(DrainOptions { disable_eviction: true, ..DrainOptions::default() }, None);
    harness.run_to(25);
    assert_eq!(harness.log[2..], ["19 delete a"], "the later request counts at once");
    assert_eq!(harness.recorded().0, DrainState::Complete);
}

#[test]
fn uncordon_ends_a_drain() {
    for by_hand in [false, true] {
        let mut harness = Harness::with([managed("a")]);
        harness.refusals.insert(key("a"), budget("no"));
        harness.drain(DrainOptions::default(), None);
        harness.run_to(7);
        if by_hand {
            harness.change_node(|node| node.spec.unschedulable = false);
            assert_eq!(harness.progress(), "Cancelled a:Evict:Blocked");
        } else {
            let free = uncordon(&harness.node(), "", true).unwrap();
            harness.put_node(free);
        }
        harness.run_to(100);
        assert_eq!(harness.log, ["0 evict a", "5 evict a"]);
        let drain = harness.node().spec.drain;
        // Without a result, a later manual cordon would start it again.
        let result = drain.map(|drain| (drain.state, drain.message));
        let cancelled = (DrainState::Failed, "cancelled: the node was uncordoned".to_owned());
        assert_eq!(result, by_hand.then_some(cancelled));
        assert_eq!(harness.drains.under_way().count(), 0);
    }
}

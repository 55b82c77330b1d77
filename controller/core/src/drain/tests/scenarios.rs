//! Scenarios of the specification, by number.

use super::*;
use crate::drain::intent::{cordon, uncordon};

#[test]
fn s175_a_cordon_leaves_running_pods_alone() {
    let mut site = Site::with([managed("a"), pod("b")]);
    let cordoned = cordon(&site.node(), "eva", "flaky", site.now().wall).unwrap();
    site.put_node(cordoned);
    site.run_to(1000);
    assert_eq!((site.log.len(), site.here().as_str()), (0, "a b"));
    assert_eq!(site.drains.progress(&site.world, NODE, site.now()), None);
    assert_eq!(cordon(&site.node(), "eva", "flaky", site.now().wall), None);
}

#[test]
fn s176_a_pod_of_a_daemon_set_stops_the_drain_unless_it_may_stay() {
    let mut site = Site::with([managed("a"), pod("ds").owned_by("DaemonSet", "ds"), managed("b")]);
    site.drain(DrainOptions::default(), None);
    assert_eq!(site.progress(), "Refused a:Evict:Waiting b:Evict:Waiting ds:Refuse:Stays");
    site.run_to(100);
    let (state, message) = site.recorded();
    assert_eq!(state, DrainState::Failed);
    assert!(message.contains("default/ds") && message.contains("ignoreDaemonsets"), "{message}");
    assert_eq!((site.log.len(), site.here().as_str()), (0, "a b ds"), "nothing is moved");
    assert!(site.node().spec.unschedulable, "it stays cordoned");
    assert_eq!(site.progress(), "Failed a:Evict:Stays b:Evict:Stays ds:Refuse:Stays");

    site.drain(DrainOptions { ignore_daemonsets: true, ..DrainOptions::default() }, None);
    site.run_to(200);
    assert_eq!(site.log, ["100 evict a", "100 evict b"]);
    assert_eq!(site.here(), "ds");
    let complete = "every pod that had to go has stopped; 1 left running";
    assert_eq!(site.recorded(), (DrainState::Complete, complete.to_owned()));
    assert_eq!(
        site.events,
        [
            "Draining: eva drains the node: new kernel".to_owned(),
            format!("DrainFailed: {message}"),
            "Draining: eva drains the node: new kernel".to_owned(),
            format!("DrainComplete: {complete}"),
        ]
    );
}

#[test]
fn s177_unmanaged_pods_need_force_and_scratch_data_a_word_of_its_own() {
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
        let mut site = Site::with(pods());
        site.drain(options, None);
        site.run_to(100);
        let (state, message) = site.recorded();
        match expected {
            Some(expected) => {
                assert_eq!((state, site.log.len()), (DrainState::Failed, 0), "{options:?}");
                assert!(message.contains(expected), "{message}");
            }
            None => {
                assert_eq!((state, site.here().as_str()), (DrainState::Complete, "static"), "{message}");
                assert_eq!(site.log, ["0 evict bare", "0 evict scratch", "0 evict web"]);
                assert!(message.ends_with("; 1 skipped"), "{message}");
            }
        }
    }
}

#[test]
fn s178_a_budget_in_the_way_is_asked_again_every_five_seconds() {
    let mut site = Site::with([managed("a"), managed("b")]);
    site.refusals.insert(key("a"), budget("web needs 2 healthy, has 2"));
    site.drain(DrainOptions::default(), None);
    site.run_to(3);
    assert_eq!(site.progress(), "Draining b:Evict:Gone a:Evict:Blocked");
    let progress = site.drains.progress(&site.world, NODE, site.now()).unwrap();
    assert_eq!(progress.pods[1].reason, "web needs 2 healthy, has 2");
    assert_eq!(progress.pods[1].retry_at, Some(at(5).mono));
    assert_eq!(site.drains.remaining(&site.world, NODE, site.now()), 1);
    site.run_to(12);
    site.refusals.clear();
    site.run_to(20);
    assert_eq!(site.log, ["0 evict a", "0 evict b", "5 evict a", "10 evict a", "15 evict a"]);
    assert_eq!((site.recorded().0, site.here().as_str()), (DrainState::Complete, ""));
    assert_eq!(site.node().spec.drain.unwrap().finished_at, Some(at(16).wall), "done within 20 s");
}

#[test]
fn s178_a_budget_in_the_way_until_the_timeout_fails_the_drain() {
    let mut site = Site::with([managed("a"), managed("b")]);
    site.refusals.insert(key("a"), budget("web needs 2 healthy, has 2"));
    site.drain(DrainOptions::default(), Some(10));
    site.run_to(12);
    site.refusals.clear();
    site.run_to(100);
    assert_eq!(site.log, ["0 evict a", "0 evict b", "5 evict a"]);
    assert_eq!((site.recorded().0, site.here().as_str()), (DrainState::Failed, "a"));
    let drain = site.node().spec.drain.unwrap();
    assert_eq!(drain.finished_at, Some(at(10).wall));
    let left = "the deadline has passed and 1 pod is left: default/a (web needs 2 healthy, has 2)";
    assert_eq!(drain.message, left);
    assert!(site.node().spec.unschedulable);
    assert_eq!(site.drains.under_way().count(), 0);
}

#[test]
fn s178_the_store_may_ask_for_more_patience_and_a_plain_deletion_asks_no_budget() {
    let mut site = Site::with([managed("a")]);
    let retry_after = Some(Duration::from_secs(10));
    site.refusals.insert(key("a"), Failure::Budget { message: "counting".to_owned(), retry_after });
    site.drain(DrainOptions::default(), None);
    site.run_to(19);
    assert_eq!(site.log, ["0 evict a", "10 evict a"]);
    site.drain(DrainOptions { disable_eviction: true, ..DrainOptions::default() }, None);
    site.run_to(25);
    assert_eq!(site.log[2..], ["19 delete a"], "the later request counts at once");
    assert_eq!(site.recorded().0, DrainState::Complete);
}

#[test]
fn uncordon_ends_a_drain() {
    for by_hand in [false, true] {
        let mut site = Site::with([managed("a")]);
        site.refusals.insert(key("a"), budget("no"));
        site.drain(DrainOptions::default(), None);
        site.run_to(7);
        if by_hand {
            site.change_node(|node| node.spec.unschedulable = false);
            assert_eq!(site.progress(), "Cancelled a:Evict:Blocked");
        } else {
            let free = uncordon(&site.node()).unwrap();
            site.put_node(free);
        }
        site.run_to(100);
        assert_eq!(site.log, ["0 evict a", "5 evict a"]);
        let drain = site.node().spec.drain;
        // Left as it is, a later cordon by hand would set it going again.
        let said = drain.map(|drain| (drain.state, drain.message));
        let cancelled = (DrainState::Failed, "cancelled: the node was uncordoned".to_owned());
        assert_eq!(said, by_hand.then_some(cancelled));
        assert_eq!(site.drains.under_way().count(), 0);
    }
}

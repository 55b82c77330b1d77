use muster_proto::pod::PodPhase;

use super::*;
use crate::fixtures::{PodSample, at, pod};

/// Options out of `force ignore_daemonsets`.
fn options(text: &str) -> DrainOptions {
    let mut options = DrainOptions::default();
    for word in text.split_whitespace() {
        match word {
            "force" => options.force = true,
            "ignore_daemonsets" => options.ignore_daemonsets = true,
            "delete_emptydir_data" => options.delete_emptydir_data = true,
            "disable_eviction" => options.disable_eviction = true,
            word => panic!("{word}"),
        }
    }
    options
}

/// A pod out of `daemon mirror empty_dir managed finished`.
fn sample(text: &str) -> PodSample {
    text.split_whitespace().fold(pod("p").on("n").phase(PodPhase::Running), |pod, word| match word {
        "daemon" => pod.owned_by("DaemonSet", "ds"),
        "managed" => pod.owned_by("ReplicaSet", "rs"),
        "mirror" => pod.mirror(),
        "empty_dir" => pod.empty_dir(),
        "succeeded" => pod.phase(PodPhase::Succeeded),
        "failed" => pod.phase(PodPhase::Failed),
        word => panic!("{word}"),
    })
}

#[test]
fn s177_the_filters_decide_in_their_order() {
    let all = "force ignore_daemonsets delete_emptydir_data";
    for (what, given, expected, warnings) in [
        ("managed", "", "Evict", 0),
        ("managed", "disable_eviction", "Delete", 0),
        ("", "", "Refuse force", 0),
        ("", "force", "Evict", 1),
        ("", "force disable_eviction", "Delete", 1),
        ("succeeded", "", "Evict", 0),
        ("failed", "", "Evict", 0),
        ("daemon", "", "Refuse ignoreDaemonsets", 0),
        ("daemon", "force", "Refuse ignoreDaemonsets", 0),
        ("daemon", all, "Leave", 1),
        ("daemon empty_dir", "ignore_daemonsets", "Leave", 1),
        ("daemon mirror", "", "Refuse ignoreDaemonsets", 0),
        ("daemon succeeded", "", "Evict", 0),
        ("mirror", "", "Skip", 0),
        ("mirror empty_dir", all, "Skip", 0),
        ("mirror succeeded", "", "Skip", 0),
        ("managed empty_dir", "", "Refuse deleteEmptydirData", 0),
        ("managed empty_dir", "force", "Refuse deleteEmptydirData", 0),
        ("managed empty_dir", "delete_emptydir_data", "Evict", 1),
        ("managed empty_dir succeeded", "", "Evict", 0),
        ("empty_dir", "", "Refuse deleteEmptydirData", 0),
        ("empty_dir", "delete_emptydir_data", "Refuse force", 1),
        ("empty_dir", "force delete_emptydir_data", "Evict", 2),
    ] {
        let planned = planned(&sample(what).build(), &options(given), at(0).wall);
        let action = match planned.action {
            PodAction::Refuse(obstacle) => format!("{} {}", planned.action, obstacle.option()),
            action => action.to_string(),
        };
        assert_eq!(
            (action.as_str(), planned.warnings.len()),
            (expected, warnings),
            "{what:?} with {given:?}"
        );
    }
}

#[test]
fn a_pod_long_past_its_grace_period_is_skipped() {
    // Deleted at time 0 with a grace period of 30 s.
    let ending = sample("daemon").deleting(30).build();
    for (patience, now, expected) in [
        (10, 30, "Refuse"),
        (10, 40, "Refuse"),
        (10, 41, "Skip"),
        (0, 10_000, "Refuse"),
        (10_000, 41, "Refuse"),
    ] {
        let options = DrainOptions { skip_wait_for_delete_seconds: patience, ..DrainOptions::default() };
        let planned = planned(&ending, &options, at(now).wall);
        assert_eq!(planned.action.to_string(), expected, "patience {patience} s at {now} s");
    }
    let options = DrainOptions { skip_wait_for_delete_seconds: 1, ..DrainOptions::default() };
    let planned = planned(&sample("managed").build(), &options, at(100).wall);
    assert_eq!(planned.action, PodAction::Evict, "it is not being deleted");
}

#[test]
fn lower_priorities_leave_first_then_by_name() {
    let managed = |name: &str| pod(name).on("n").owned_by("ReplicaSet", "rs");
    let pods = [
        managed("b").build(),
        managed("high").priority(1000).build(),
        managed("a").build(),
        managed("low").priority(-5).build(),
        managed("zero").priority(0).build(),
    ];
    let plan = plan(&pods, &DrainOptions::default(), at(0).wall);
    let order: Vec<_> = plan.pods.iter().map(|pod| pod.key.name.as_str()).collect();
    assert_eq!(order, ["low", "a", "b", "zero", "high"]);
    assert_eq!(plan.refusal(), None);
}

#[test]
fn a_refusal_lists_the_pods_and_the_options() {
    let daemon = pod("ds").on("n").owned_by("DaemonSet", "ds").build();
    let scratch = pod("scratch").on("n").owned_by("ReplicaSet", "rs").empty_dir().build();
    let bare = (0..8).map(|i| pod(&format!("bare-{i}")).on("n").build());
    let pods: Vec<_> = [daemon, scratch].into_iter().chain(bare).collect();
    let refusal = plan(&pods, &DrainOptions::default(), at(0).wall).refusal().unwrap();
    assert_eq!(
        refusal,
        "refused: pods of a DaemonSet: default/ds (ignoreDaemonsets leaves them running); \
         pods with data in emptyDir volumes: default/scratch (deleteEmptydirData moves them, and the data is \
         lost); pods without an owner that would replace them: default/bare-0, default/bare-1, default/bare-2, \
         default/bare-3, default/bare-4 and 3 more (force ends them for good)"
    );
}

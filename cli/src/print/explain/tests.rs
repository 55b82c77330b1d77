use super::*;
use crate::samples::{at, seconds};

#[test]
fn a_node_that_waits_for_its_taint() {
    let taint = pb::Taint {
        key: "node.kubernetes.io/unreachable".to_owned(),
        effect: "NoExecute".to_owned(),
        ..Default::default()
    };
    let toleration = pb::Toleration {
        key: "node.kubernetes.io/unreachable".to_owned(),
        operator: "Exists".to_owned(),
        toleration_seconds: Some(300),
        ..Default::default()
    };
    let zone = pb::FleetZone {
        name: "eu/eu-2".to_owned(),
        state: pb::ZoneState::PartialDisruption.into(),
        nodes: 334,
        unhealthy: 200,
        rate: 0.01,
        queue_length: 199,
        reason: "60% of its nodes are not ready".to_owned(),
        ..Default::default()
    };
    let response = pb::ExplainNodeResponse {
        name: "worker-1".to_owned(),
        uid: "6f1c".to_owned(),
        summary: "worker-1 has been silent for 95s and waits for its turn to be tainted.".to_owned(),
        ready: "Unknown".to_owned(),
        silence: Some(pb::NodeSilence {
            seen_at: at("2026-05-04T11:58:25Z"),
            seen_by: pb::SignOfLife::Lease.into(),
            silent_for: seconds(95),
            grace: seconds(40),
            deadline: at("2026-05-04T11:59:05Z"),
        }),
        zone: Some(zone),
        excluded: true,
        queue_position: 7,
        explanations: vec![
            pb::Explanation {
                action: pb::ExplanationAction::MarkUnknown.into(),
                state: pb::ExplanationState::Done.into(),
                reason: "its deadline passed".to_owned(),
                ..Default::default()
            },
            pb::Explanation {
                action: pb::ExplanationAction::Taint.into(),
                state: pb::ExplanationState::Slowed.into(),
                reason: "the zone is partly disrupted".to_owned(),
                inputs: [("position".to_owned(), "7".to_owned()), ("rate".to_owned(), "0.01".to_owned())]
                    .into(),
                earliest: at("2026-05-04T12:11:40Z"),
                decision_id: 0,
            },
        ],
        pods: vec![
            pb::PodExplanation {
                namespace: "shop".to_owned(),
                name: "web-1".to_owned(),
                decision: pb::EvictionDecision::Evict.into(),
                reason: "its toleration runs out".to_owned(),
                earliest_eviction: at("2026-05-04T12:16:40Z"),
                taint: Some(taint.clone()),
                toleration: Some(toleration.clone()),
                ..Default::default()
            },
            pb::PodExplanation {
                namespace: "shop".to_owned(),
                name: "watcher".to_owned(),
                decision: pb::EvictionDecision::Keep.into(),
                reason: "it tolerates the taint without limit".to_owned(),
                taint: Some(taint),
                toleration: Some(pb::Toleration {
                    toleration_seconds: None,
                    key: String::new(),
                    ..toleration
                }),
                ..Default::default()
            },
        ],
        as_of: at("2026-05-04T12:00:00Z"),
    };
    insta::assert_snapshot!(explanation(&response, Paint::Plain, usize::MAX));
    let narrow = explanation(&response, Paint::Plain, 80);
    assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
    insta::assert_snapshot!("a_node_that_waits_on_80_columns", narrow);
}

#[test]
fn a_node_without_explanations() {
    let response = pb::ExplainNodeResponse { name: "worker-2".to_owned(), ..Default::default() };
    insta::assert_snapshot!(explanation(&response, Paint::Plain, usize::MAX));
}

#[test]
fn the_reason_of_the_zone_does_not_repeat_the_summary() {
    let summary = "n1 is silent. All 5 nodes have failed: up to 0.1 nodes per second are tainted.";
    for (reason, expected) in [
        (
            "All 5 nodes have failed: up to 0.1 nodes per second are tainted. 4 queued, which takes about 40 s.",
            "4 queued, which takes about 40 s.",
        ),
        ("All 5 nodes have failed: up to 0.1 nodes per second are tainted.", ""),
        (
            "5 of 5 Ready; up to 0.1 nodes/s may be evicted.",
            "5 of 5 Ready; up to 0.1 nodes/s may be evicted.",
        ),
        ("", ""),
    ] {
        assert_eq!(sentences_not_in(reason, summary), expected);
    }
}

#[test]
fn a_table_without_inputs_has_no_column_for_them() {
    let explanation = pb::Explanation {
        action: pb::ExplanationAction::Schedule.into(),
        state: pb::ExplanationState::Done.into(),
        reason: "it is bound".to_owned(),
        ..Default::default()
    };
    let shown = explanations(&[explanation], None, Paint::Plain, usize::MAX);
    assert!(!shown.contains("FROM"), "{shown}");
}

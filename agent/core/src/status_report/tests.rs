//! Posts and silences of a node over time.

use super::*;
use crate::testing::node::{after, at, observed};

const REPORT: Duration = Duration::from_secs(60);

fn mono(seconds: u64) -> Mono {
    Mono::since_origin(Duration::from_secs(seconds))
}

fn status() -> NodeStatus {
    after(&NodeStatus::default(), &observed(), 100).status
}

/// The same status, computed ten seconds later.
fn later() -> NodeStatus {
    after(&status(), &observed(), 110).status
}

fn unchanged<'a>(stored: &'a NodeStatus, computed: &'a NodeStatus) -> StatusComparison<'a> {
    StatusComparison { stored, computed, pod_cidrs: &[], labels_repaired: false }
}

/// A reporter that posted at second 0 with that draw.
fn posted(reason: PostReason, draw: f64) -> StatusReporter {
    let mut reporter = StatusReporter::new(REPORT);
    reporter.observe_posted(reason, &[], draw, mono(0));
    reporter
}

#[test]
fn s044_a_node_on_which_nothing_changes_posts_once() {
    let (stored, computed) = (status(), later());
    let mut reporter = StatusReporter::new(Duration::from_secs(300));
    let mut posts = Vec::new();
    for second in (0..=60).step_by(10) {
        if let Decision::Post(reason) = reporter.decide(unchanged(&stored, &computed), mono(second)) {
            posts.push((second, reason));
            reporter.observe_posted(reason, &[], 0.0, mono(second));
        }
    }
    assert_eq!(posts, [(0, PostReason::First)]);
}

#[test]
fn s045_a_routine_post_comes_after_half_to_one_and_a_half_times_the_frequency_then_each_time() {
    let (stored, computed) = (status(), later());
    let comparison = unchanged(&stored, &computed);
    for (reason, draw, due) in [
        (PostReason::Changed, 0.0, 30),
        (PostReason::Changed, 0.5, 60),
        (PostReason::Changed, 0.999_999, 90),
        (PostReason::First, 0.25, 45),
        (PostReason::PodCidr, 0.25, 45),
        (PostReason::Labels, 0.25, 45),
        (PostReason::Due, 0.0, 60),
        (PostReason::Due, 0.9, 60),
        (PostReason::Changed, f64::NAN, 30),
    ] {
        let reporter = posted(reason, draw);
        let before = reporter.decide(comparison, mono(due - 1));
        assert!(
            matches!(before, Decision::Keep { until } if until <= mono(due)),
            "{reason:?} {draw}: {before:?}"
        );
        assert_eq!(
            reporter.decide(comparison, mono(due)),
            Decision::Post(PostReason::Due),
            "{reason:?} {draw}"
        );
    }
}

#[test]
fn s045_with_a_status_every_ten_seconds_posts_are_thirty_to_a_hundred_seconds_apart() {
    let (stored, computed) = (status(), later());
    let comparison = unchanged(&stored, &computed);
    for draw in [0.0, 0.3, 0.7, 0.999] {
        let mut reporter = posted(PostReason::Changed, draw);
        let mut posts = Vec::new();
        for second in (10..400).step_by(10) {
            if reporter.decide(comparison, mono(second)) == Decision::Post(PostReason::Due) {
                posts.push(second);
                reporter.observe_posted(PostReason::Due, &[], draw, mono(second));
            }
        }
        assert!((30..=100).contains(&posts[0]), "{posts:?}");
        assert!(posts.windows(2).all(|pair| (60..=70).contains(&(pair[1] - pair[0]))), "{posts:?}");
    }
}

#[test]
fn s046_s048_a_status_that_differs_from_the_stores_is_posted_at_once() {
    let computed = later();
    let mut other_memory = status();
    other_memory.capacity.insert("memory".to_owned(), "1Gi".parse().unwrap());
    let mut overwritten = status();
    overwritten.conditions[3].status = muster_proto::condition::ConditionStatus::Unknown;
    let mut fewer = status();
    fewer.conditions.pop();
    for stored in [&other_memory, &overwritten, &fewer] {
        let decision = posted(PostReason::Due, 0.5).decide(unchanged(stored, &computed), mono(1));
        assert_eq!(decision, Decision::Post(PostReason::Changed));
    }
}

#[test]
fn s047_a_new_address_block_is_posted_once() {
    let (stored, computed) = (status(), later());
    let blocks: Vec<Cidr> = vec!["10.10.0.0/24".parse().unwrap()];
    let comparison = StatusComparison { pod_cidrs: &blocks, ..unchanged(&stored, &computed) };
    let mut reporter = posted(PostReason::First, 0.5);
    assert_eq!(reporter.decide(comparison, mono(10)), Decision::Post(PostReason::PodCidr));
    assert_eq!(
        reporter.decide(comparison, mono(20)),
        Decision::Post(PostReason::PodCidr),
        "the post at 10 s failed"
    );
    reporter.observe_posted(PostReason::PodCidr, &blocks, 0.5, mono(20));
    assert_eq!(reporter.decide(comparison, mono(30)), Decision::Keep { until: mono(80) });
}

#[test]
fn s037_a_restored_label_is_posted() {
    let (stored, computed) = (status(), later());
    let comparison = StatusComparison { labels_repaired: true, ..unchanged(&stored, &computed) };
    assert_eq!(
        posted(PostReason::First, 0.5).decide(comparison, mono(10)),
        Decision::Post(PostReason::Labels)
    );
}

#[test]
fn s049_a_report_frequency_of_five_seconds_posts_every_status() {
    let (stored, computed) = (status(), later());
    let mut reporter = StatusReporter::new(Duration::from_secs(5));
    reporter.observe_posted(PostReason::Due, &[], 0.5, mono(0));
    assert_eq!(reporter.decide(unchanged(&stored, &computed), mono(5)), Decision::Post(PostReason::Due));
}

#[test]
fn a_post_that_failed_is_decided_on_again() {
    let (stored, computed) = (status(), later());
    let reporter = StatusReporter::new(REPORT);
    for second in [0, 10, 20] {
        let decision = reporter.decide(unchanged(&stored, &computed), mono(second));
        assert_eq!(decision, Decision::Post(PostReason::First));
    }
    assert_eq!(at(110), computed.conditions[0].last_heartbeat_time.unwrap());
}

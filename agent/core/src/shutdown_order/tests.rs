use super::*;
use crate::testing::{PodBuilder, pod, uid};

const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn at(seconds: u64) -> Mono {
    Mono::since_origin(secs(seconds))
}

fn two(total: u64, critical: u64) -> Schedule {
    Schedule::new(secs(total), secs(critical), &[])
}

fn by_priority(groups: &[(i32, u64)]) -> Schedule {
    let groups: Vec<(i32, Duration)> =
        groups.iter().map(|&(priority, each)| (priority, secs(each))).collect();
    Schedule::new(Duration::ZERO, Duration::ZERO, &groups)
}

fn shutdown(schedule: &Schedule, pods: Vec<PodBuilder>) -> GroupShutdown {
    let pods: Vec<Pod> = pods.into_iter().map(PodBuilder::build).collect();
    GroupShutdown::new(schedule, &pods)
}

/// Who is to stop now, with how many seconds.
fn stopped(shutdown: &GroupShutdown) -> Vec<(Uid, u64)> {
    match shutdown.decide() {
        GroupStep::Stop(all) => {
            all.into_iter().map(|(uid, termination)| (uid, termination.grace.as_secs())).collect()
        }
        _ => Vec::new(),
    }
}

#[test]
fn s069_each_pod_gets_the_shorter_of_its_own_grace_and_its_groups() {
    let pods = vec![
        pod("normal"),
        pod("critical").priority(SYSTEM_CRITICAL),
        pod("short").grace(2),
        pod("long").grace(1000),
    ];
    let mut shutdown = shutdown(&two(30, 10), pods);
    assert_eq!(stopped(&shutdown), [(uid("normal"), 20), (uid("short"), 2), (uid("long"), 20)]);
    shutdown.begun(at(0));
    assert_eq!(shutdown.decide(), GroupStep::Wait { until: at(20) });
    shutdown.observe(|each| each == uid("long"), at(19));
    assert_eq!(shutdown.decide(), GroupStep::Wait { until: at(20) }, "one is still there");
    shutdown.observe(|_| true, at(20));
    assert_eq!(stopped(&shutdown), [(uid("critical"), 10)], "its time is over");
    shutdown.begun(at(20));
    shutdown.observe(|_| false, at(21));
    assert_eq!(shutdown.decide(), GroupStep::Done, "all are gone");
}

#[test]
fn s069_a_pod_that_is_shut_down_has_reason_and_message() {
    let GroupStep::Stop(all) = shutdown(&two(30, 10), vec![pod("a")]).decide() else {
        panic!("it has to stop");
    };
    let termination = &all[0].1;
    assert_eq!(termination.reason, "Terminated");
    assert_eq!(termination.message, "Pod was terminated in response to imminent node shutdown.");
    assert!(termination.is_disruption);
}

#[test]
fn s070_two_durations_make_two_groups_or_none() {
    let groups = |normal, critical| {
        vec![
            Group { priority: 0, period: secs(normal) },
            Group { priority: SYSTEM_CRITICAL, period: secs(critical) },
        ]
    };
    for (total, critical, expected, is_on) in [
        (30, 10, groups(20, 10), true),
        (30, 0, groups(30, 0), true),
        (30, 30, groups(0, 30), true),
        (0, 0, vec![], false),
        (30, 40, vec![], false),
        (0, 10, vec![], false),
    ] {
        let schedule = two(total, critical);
        assert_eq!((&schedule.groups[..], schedule.is_on()), (&expected[..], is_on), "{total} {critical}");
    }
    assert_eq!(shutdown(&two(0, 0), vec![pod("a")]).decide(), GroupStep::Done, "pods are left alone");
}

#[test]
fn s071_a_pod_is_in_the_highest_group_that_its_priority_reaches() {
    let schedule = by_priority(&[(100_000, 10), (10_000, 180), (1000, 120), (0, 60)]);
    for (priority, expected) in
        [(9_999, 120), (10_000, 180), (99_999, 180), (100_000, 10), (SYSTEM_CRITICAL, 10), (0, 60), (-5, 60)]
    {
        let group = schedule.group_of(priority).unwrap();
        assert_eq!(group.period, secs(expected), "{priority}");
    }
    assert_eq!(schedule.total(), secs(370));
}

#[test]
fn s071_groups_stop_in_order_and_empty_ones_take_no_time() {
    let schedule = by_priority(&[(100_000, 10), (10_000, 180), (1000, 120), (0, 60)]);
    let mut shutdown =
        shutdown(&schedule, vec![pod("top").priority(200_000), pod("low").priority(-5), pod("zero")]);
    assert_eq!(stopped(&shutdown), [(uid("low"), 60), (uid("zero"), 60)]);
    shutdown.begun(at(0));
    shutdown.observe(|_| false, at(1));
    assert_eq!(stopped(&shutdown), [(uid("top"), 10)]);
}

#[test]
fn s211_a_group_without_time_has_a_turn_of_2_s() {
    let schedule = by_priority(&[(1000, 10), (0, 0)]);
    assert_eq!(schedule.total(), secs(12));
    let mut shutdown = shutdown(&schedule, vec![pod("top").priority(1000), pod("low")]);
    assert_eq!(stopped(&shutdown), [(uid("low"), 0)]);
    shutdown.begun(at(0));
    shutdown.observe(|_| true, at(1));
    assert_eq!(shutdown.decide(), GroupStep::Wait { until: at(2) }, "it got TERM, and is killed at 2 s");
    shutdown.observe(|_| true, at(2));
    assert_eq!(stopped(&shutdown), [(uid("top"), 10)]);
}

#[test]
fn groups_without_time_are_not_a_schedule() {
    assert!(!by_priority(&[(0, 0)]).is_on());
}

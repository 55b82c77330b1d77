//! Rounds that go well, rounds that fail, and the times between.

use super::*;

const LEASE: Duration = Duration::from_secs(40);

fn millis(count: u64) -> Mono {
    Mono::since_origin(Duration::from_millis(count))
}

/// A schedule that knows its lease, with its first round renewed at 0.
fn running() -> RenewalSchedule {
    let mut schedule = RenewalSchedule::new(LEASE, millis(0));
    assert_eq!(schedule.step(millis(0)), LeaseStep::Ensure);
    schedule.observe_ensured(millis(0));
    assert_eq!(schedule.step(millis(0)), LeaseStep::Renew);
    schedule.observe_renewed(None, 0.0);
    schedule
}

#[test]
fn s042_a_node_tries_to_register_at_a_tenth_of_a_second_then_ever_less_often() {
    let mut at = Duration::ZERO;
    let attempts: Vec<u128> = (0..10)
        .map(|attempt| {
            at += registration_delay(attempt);
            at.as_millis()
        })
        .collect();
    assert_eq!(attempts, [100, 300, 700, 1_500, 3_100, 6_300, 12_700, 19_700, 26_700, 33_700]);
    assert_eq!(registration_delay(u32::MAX), Duration::from_secs(7));
}

#[test]
fn s044_a_lease_is_renewed_at_a_quarter_of_its_duration_and_up_to_four_percent() {
    for (draw, expected) in [(0.0, 10_000), (0.5, 10_200), (1.0, 10_400), (7.0, 10_400), (f64::NAN, 10_000)] {
        let mut schedule = running();
        assert_eq!(schedule.step(millis(10_000)), LeaseStep::Renew);
        // The answer took a while; the next round is counted from the start of this one.
        schedule.observe_renewed(None, draw);
        let until = millis(10_000 + expected);
        assert_eq!(schedule.step(millis(10_300)), LeaseStep::Wait { until }, "draw {draw}");
        assert_eq!(schedule.step(until), LeaseStep::Renew);
    }
}

#[test]
fn the_interval_that_the_store_requests_is_followed_within_bounds() {
    for (requested, expected) in [(9_500, 9_500), (12_000, 12_000), (3_600_000, 20_000), (0, 1_000)] {
        let mut schedule = running();
        assert_eq!(schedule.step(millis(10_000)), LeaseStep::Renew);
        schedule.observe_renewed(Some(Duration::from_millis(requested)), 1.0);
        let until = millis(10_000 + expected);
        assert_eq!(schedule.step(millis(10_000)), LeaseStep::Wait { until }, "requested {requested}");
    }
}

#[test]
fn s052_four_failures_stay_in_the_round_and_the_fifth_ends_it() {
    let mut schedule = running();
    for _ in 0..4 {
        assert_eq!(schedule.step(millis(10_000)), LeaseStep::Renew);
        schedule.observe_renew_failed(0.0);
    }
    let mut lucky = schedule.clone();
    assert_eq!(lucky.step(millis(10_000)), LeaseStep::Renew);
    lucky.observe_renewed(None, 0.0);
    assert_eq!(lucky.step(millis(10_100)), LeaseStep::Wait { until: millis(20_000) });
    assert_eq!(lucky.step(millis(20_000)), LeaseStep::Renew);

    assert_eq!(schedule.step(millis(10_000)), LeaseStep::Renew);
    schedule.observe_renew_failed(0.0);
    assert_eq!(schedule.step(millis(10_000)), LeaseStep::Wait { until: millis(20_000) });
    assert_eq!(schedule.step(millis(20_000)), LeaseStep::Ensure, "the lease is ensured again");
    schedule.observe_ensured(millis(20_000));
    assert_eq!(schedule.step(millis(20_000)), LeaseStep::Renew);
}

#[test]
fn ensuring_backs_off_to_seven_seconds_and_never_stops() {
    let mut schedule = RenewalSchedule::new(LEASE, millis(0));
    let (mut now, mut waits) = (millis(0), Vec::new());
    for _ in 0..8 {
        assert_eq!(schedule.step(now), LeaseStep::Ensure);
        schedule.observe_ensure_failed(0.0, now);
        let LeaseStep::Wait { until } = schedule.step(now) else { panic!("no wait after a failure") };
        waits.push((until - now).as_millis());
        now = until;
    }
    assert_eq!(waits, [200, 400, 800, 1_600, 3_200, 6_400, 7_000, 7_000]);
    assert_eq!(schedule.step(now), LeaseStep::Ensure);
    schedule.observe_ensured(now);
    assert_eq!(schedule.step(now), LeaseStep::Renew, "the overdue renewal is sent at once");
    schedule.observe_renewed(None, 0.0);
    let until = now + Duration::from_secs(10);
    assert_eq!(schedule.step(now), LeaseStep::Wait { until }, "and only once");
}

#[test]
fn the_second_timeout_in_a_row_drops_the_connection() {
    let mut connection = ConnectionHealth::default();
    assert!(!connection.observe_timeout());
    assert!(connection.observe_timeout());
    assert!(connection.observe_timeout(), "and each one after it");
    connection.observe_answer();
    assert!(!connection.observe_timeout());
}

#[test]
fn a_connection_is_probed_often_enough_for_its_lease() {
    for (lease, interval, timeout) in
        [(3600, 10_000, 5_000), (40, 10_000, 5_000), (16, 4_000, 2_000), (8, 2_000, 1_000), (4, 1_000, 1_000)]
    {
        let lease = Duration::from_secs(lease);
        assert_eq!(keepalive(lease), (Duration::from_millis(interval), Duration::from_millis(timeout)));
        assert!(keepalive(lease).0 + keepalive(lease).1 <= lease / 2, "{lease:?}");
    }
}

#[test]
fn a_dead_connection_is_detected_within_half_a_lease() {
    for (update, lease, expected) in [(10, 40, 10), (60, 40, 20), (1, 40, 1), (10, 8, 4)] {
        let found = answer_deadline(Duration::from_secs(update), Duration::from_secs(lease));
        assert_eq!(found, Duration::from_secs(expected), "{update} {lease}");
    }
}

proptest::proptest! {
    /// Whatever happens, the lease is looked after again before half of it has passed.
    #[test]
    fn no_wait_is_longer_than_half_a_lease(
        lease in 1u64..3600,
        outcomes in proptest::collection::vec((0u8..5, 0.0f64..1.0, 0u64..7_200_000), 1..60),
    ) {
        let lease = Duration::from_secs(lease);
        let mut now = millis(0);
        let mut schedule = RenewalSchedule::new(lease, now);
        for (outcome, draw, requested) in outcomes {
            match (schedule.step(now), outcome) {
                (LeaseStep::Wait { until }, _) => {
                    proptest::prop_assert!(until > now);
                    proptest::prop_assert!(until - now <= (lease / 2).max(ENSURE.cap));
                    now = until;
                }
                (LeaseStep::Ensure, 0..=2) => schedule.observe_ensured(now),
                (LeaseStep::Ensure, _) => schedule.observe_ensure_failed(draw, now),
                (LeaseStep::Renew, 0..=2) => {
                    let requested = (outcome > 0).then(|| Duration::from_millis(requested));
                    schedule.observe_renewed(requested, draw);
                }
                (LeaseStep::Renew, _) => schedule.observe_renew_failed(draw),
            }
        }
    }
}

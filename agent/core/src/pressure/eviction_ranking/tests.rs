use super::*;
use crate::pressure::{Flags, thresholds};
use crate::testing::{PodBuilder, pod, uid};

const MI: u64 = 1 << 20;

fn at(seconds: u64) -> Mono {
    Mono::since_origin(Duration::from_secs(seconds))
}

fn uses_memory(pod: &Pod, mi: u64) -> Candidate<'_> {
    Candidate { pod, usage: Usage { memory: mi * MI, ..Usage::default() } }
}

fn met(text: &str, is_hard: bool) -> PressureState {
    let mut all = thresholds(&Flags { hard: Some(text), ..Flags::default() }).unwrap();
    for threshold in &mut all {
        threshold.grace = (!is_hard).then_some(Duration::from_secs(60));
    }
    let (hard, soft) = if is_hard { (all, vec![]) } else { (vec![], all) };
    PressureState { hard, soft, ..PressureState::default() }
}

/// What a round comes to, in short.
fn evicted(step: &EvictionStep) -> Option<Uid> {
    match step {
        EvictionStep::Evict { uid, .. } => Some(*uid),
        _ => None,
    }
}

#[test]
fn s067_pods_over_their_request_are_evicted_first_then_lower_priority_then_larger_excess() {
    let asks = |name: &str, priority| pod(name).requests("memory=100Mi").priority(priority).build();
    let cases: [(&str, i32, u64); 6] = [
        ("c-under", 0, 50),
        ("b-over-high", 100, 200),
        ("a-over", 0, 200),
        ("a-over-more", 0, 300),
        ("d-under-high", 100, 50),
        ("c-exact", 0, 100),
    ];
    let pods: Vec<(Pod, u64)> =
        cases.into_iter().map(|(name, high, used)| (asks(name, high), used)).collect();
    let candidates: Vec<Candidate<'_>> = pods.iter().map(|(pod, used)| uses_memory(pod, *used)).collect();
    let order: Vec<String> = rank(StarvedResource::Memory, &candidates)
        .iter()
        .map(|each| each.pod.meta.name.to_string())
        .collect();
    assert_eq!(order, ["a-over-more", "a-over", "b-over-high", "c-exact", "c-under", "d-under-high"]);
}

#[test]
fn s213_annotations_of_a_pod_from_the_store_do_not_spare_it() {
    let annotated = pod("s").source("file").mirror().build();
    assert_eq!(rank(StarvedResource::Memory, &[uses_memory(&annotated, 500)]).len(), 1);
}

#[test]
fn s067_static_and_critical_pods_are_never_evicted() {
    let spared: [PodBuilder; 2] =
        [pod("s").unstored().source("file"), pod("c").priority(priority::SYSTEM_CRITICAL)];
    let pods: Vec<Pod> = spared.into_iter().map(PodBuilder::build).collect();
    let candidates: Vec<Candidate<'_>> = pods.iter().map(|pod| uses_memory(pod, 500)).collect();
    assert!(rank(StarvedResource::Memory, &candidates).is_empty());
    let step =
        Evictor::new(Duration::ZERO).decide(&met("memory.available<1Mi", true), &candidates, |_| true, at(0));
    assert_eq!(step, EvictionStep::Nothing);
}

#[test]
fn s067_one_pod_is_evicted_per_round() {
    let (a, b) = (pod("a").build(), pod("b").priority(100).build());
    let all = [uses_memory(&a, 200), uses_memory(&b, 200)];
    let state = met("memory.available<100Mi", true);
    let mut evictor = Evictor::new(Duration::ZERO);
    let step = evictor.decide(&state, &all, |_| true, at(0));
    assert_eq!(evicted(&step), Some(uid("a")));
    evictor.observe_evicted(uid("a"), at(0));
    for (seconds, is_present, expected) in
        [(10, true, EvictionStep::Wait { until: at(30) }), (29, true, EvictionStep::Wait { until: at(30) })]
    {
        assert_eq!(evictor.decide(&state, &all, |_| is_present, at(seconds)), expected);
    }
    let rest = &all[1..];
    assert_eq!(evicted(&evictor.decide(&state, rest, |_| false, at(10))), Some(uid("b")), "it is gone");
    assert_eq!(evicted(&evictor.decide(&state, rest, |_| true, at(30))), Some(uid("b")), "long enough");
    assert_eq!(
        evictor.decide(&PressureState::default(), rest, |_| false, at(10)),
        EvictionStep::Nothing,
        "there is no pressure any more"
    );
}

#[test]
fn s064_a_soft_threshold_leaves_the_shorter_of_two_grace_periods() {
    for (is_hard, max, own, expected) in
        [(true, 60, 30, 1), (false, 60, 30, 30), (false, 10, 30, 10), (false, 0, 30, 0)]
    {
        let pod = pod("a").grace(own).build();
        let evictor = Evictor::new(Duration::from_secs(max));
        let state = met("memory.available<200Mi", is_hard);
        let EvictionStep::Evict { termination, .. } =
            evictor.decide(&state, &[uses_memory(&pod, 9)], |_| true, at(0))
        else {
            panic!("one pod has to be evicted");
        };
        assert_eq!(
            termination.grace,
            Duration::from_secs(expected),
            "hard {is_hard}, at most {max}, own {own}"
        );
        assert_eq!((termination.reason.as_str(), termination.is_disruption), ("Evicted", true));
        assert!(termination.message.contains("memory.available<200Mi"), "{}", termination.message);
    }
}

#[test]
fn files_that_no_pod_needs_are_removed_before_a_pod_is_evicted() {
    let pod = pod("a").build();
    let all = [Candidate { pod: &pod, usage: Usage { disk: 5, ..Usage::default() } }];
    let state = met("nodefs.available<10%", true);
    let mut evictor = Evictor::new(Duration::ZERO);
    assert_eq!(evictor.decide(&state, &all, |_| true, at(0)), EvictionStep::ReclaimDisk);
    evictor.observe_reclaimed();
    assert_eq!(evicted(&evictor.decide(&state, &all, |_| true, at(0))), Some(uid("a")));
    evictor.observe_evicted(uid("a"), at(0));
    assert_eq!(
        evictor.decide(&state, &all, |_| true, at(30)),
        EvictionStep::ReclaimDisk,
        "and the next time too"
    );
}

#[test]
fn memory_is_reclaimed_before_disk() {
    let pod = pod("a").build();
    let both = met("nodefs.available<10%,memory.available<1Mi", true);
    let step = Evictor::new(Duration::ZERO).decide(&both, &[uses_memory(&pod, 9)], |_| true, at(0));
    assert_eq!(evicted(&step), Some(uid("a")));
}

#[test]
fn files_that_no_pod_needs_are_removed_first_every_time_the_disk_fills() {
    let mut evictor = Evictor::new(Duration::ZERO);
    let (full, pod) = (met("nodefs.available<10%", true), pod("a").build());
    let candidates = [Candidate { pod: &pod, usage: Usage::default() }];
    let decide = |evictor: &Evictor| evictor.decide(&full, &candidates, |_| false, at(0));
    assert_eq!(decide(&evictor), EvictionStep::ReclaimDisk);
    evictor.observe_reclaimed();
    assert_eq!(evicted(&decide(&evictor)), Some(uid("a")));
    evictor.observe_no_pressure();
    assert_eq!(decide(&evictor), EvictionStep::ReclaimDisk);
}

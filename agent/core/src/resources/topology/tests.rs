use std::collections::BTreeSet;

use super::cpus::{Layout, exclusive, hints, pick, wanted};
use super::*;
use crate::testing::{ContainerBuilder, container, pod};

/// Hints such as `01 10! 11`; `!` is preferred, `*` any node. Nodes count from the right.
fn from(text: &str) -> Hints {
    Hints::From(text.split_whitespace().map(hint).collect())
}

fn hint(text: &str) -> Hint {
    let bits = text.trim_end_matches('!');
    let mask = (bits != "*").then(|| Mask(u64::from_str_radix(bits, 2).unwrap()));
    Hint { mask, is_preferred: text.ends_with('!') }
}

#[test]
fn s077_hints_are_merged_into_the_best_common_hint() {
    use Policy::{BestEffort, None, Restricted, SingleNumaNode};
    let cpu = || from("01! 10!");
    for (policy, lists, expected, admitted) in [
        (SingleNumaNode, vec![cpu(), from("10!")], "10!", true),
        (SingleNumaNode, vec![cpu(), from("11!")], "*", false),
        (SingleNumaNode, vec![from("11!")], "*", false),
        (SingleNumaNode, vec![cpu(), Hints::Any], "01!", true),
        (SingleNumaNode, vec![Hints::Any], "*!", true),
        (SingleNumaNode, vec![cpu(), from("")], "*", false),
        (BestEffort, vec![cpu(), from("11!")], "01", true),
        (BestEffort, vec![cpu(), from("10!")], "10!", true),
        (BestEffort, vec![from("01!"), from("10!")], "11", true),
        (BestEffort, vec![], "11!", true),
        (Restricted, vec![cpu(), from("11!")], "01", false),
        (Restricted, vec![cpu(), from("10! 11")], "10!", true),
        (Restricted, vec![from("01!"), from("10!")], "11", false),
        (Restricted, vec![cpu(), from("")], "01", false),
        (Restricted, vec![from("11!"), from("11!")], "11!", true),
        (None, vec![from("01!"), from("10!")], "*!", true),
    ] {
        let merged = policy.merge(2, &lists);
        assert_eq!(merged, (hint(expected), admitted), "{policy:?} {lists:?}");
    }
}

#[test]
fn preferred_beats_narrow_and_narrow_beats_wide() {
    for (lists, expected) in [
        (vec![from("0001 0111!")], "0111!"),
        (vec![from("0011! 0100! 0010!")], "0010!"),
        (vec![from("1100! 0011!")], "0011!"),
        // One provider needs two nodes at least: the aim is a hint of two nodes.
        (vec![from("0011 0111 1111"), from("0001 0011 1111")], "0011"),
        (vec![from("0110 1111"), from("0100 1111")], "0110"),
        (vec![from("0111 1111")], "0111"),
    ] {
        let (merged, _) = Policy::BestEffort.merge(4, &lists);
        assert_eq!(merged, hint(expected), "{lists:?}");
    }
}

#[test]
fn s077_a_pod_that_cannot_be_aligned_is_rejected() {
    let groups = vec![vec![from("01! 10!"), from("10!")], vec![from("01!")]];
    let admitted = Policy::SingleNumaNode.admit(2, &groups).unwrap();
    assert_eq!(admitted, [hint("10!"), hint("01!")], "each container for itself");
    let refused = Policy::SingleNumaNode.admit(2, &[vec![from("01!")], vec![from("11!")]]).unwrap_err();
    assert_eq!(refused.reason, "TopologyAffinityError");
    assert!(Policy::BestEffort.admit(2, &[vec![from("11!")]]).is_ok());
}

#[test]
fn flags_are_parsed_and_too_many_nodes_are_refused() {
    for (text, expected) in [
        ("none", Some(Policy::None)),
        ("best-effort", Some(Policy::BestEffort)),
        ("restricted", Some(Policy::Restricted)),
        ("single-numa-node", Some(Policy::SingleNumaNode)),
        ("strict", None),
    ] {
        assert_eq!(text.parse::<Policy>().ok(), expected);
    }
    assert_eq!("pod".parse(), Ok(Scope::Pod));
    assert!("node".parse::<Scope>().is_err());
    assert_eq!(Policy::Restricted.check_start(8), Ok(()));
    assert_eq!(Policy::Restricted.check_start(9), Err(TooManyNodes(9)));
    assert_eq!(Policy::None.check_start(9), Ok(()));
}

fn layout() -> Layout {
    Layout::from([(0, vec![0, 1, 2, 3]), (1, vec![4, 5, 6, 7])])
}

fn cpus(list: &[u32]) -> BTreeSet<u32> {
    list.iter().copied().collect()
}

#[test]
fn hints_name_the_nodes_with_enough_processors() {
    for (taken, count, expected) in [
        (&[][..], 0, Hints::Any),
        (&[], 2, from("01! 10! 11")),
        (&[0, 1, 2], 2, from("10! 11")),
        (&[], 5, from("11!")),
        // With none taken one node would be enough, so two are not preferred.
        (&[0, 1, 4, 5], 3, from("11")),
        (&[], 9, from("")),
    ] {
        assert_eq!(hints(&layout(), &cpus(taken), count), expected, "{count} beside {taken:?}");
    }
}

#[test]
fn processors_are_picked_where_they_fit_best() {
    for (taken, count, mask, expected) in [
        (&[][..], 2, Some(0b10), Some(&[4, 5][..])),
        (&[0, 1], 2, None, Some(&[2, 3])),
        (&[0, 1], 3, None, Some(&[4, 5, 6])),
        (&[0, 1, 2], 5, None, Some(&[3, 4, 5, 6, 7])),
        (&[4, 5, 6], 2, Some(0b10), Some(&[0, 7])),
        (&[], 0, None, Some(&[])),
        (&[0], 8, None, None),
    ] {
        let picked = pick(&layout(), &cpus(taken), count, mask.map(Mask));
        assert_eq!(picked, expected.map(cpus), "{count} of {mask:?} beside {taken:?}");
    }
}

#[test]
fn only_guaranteed_containers_with_whole_processors_get_their_own() {
    let asking = |requests: &str, limits: &str| container("main").requests(requests).limits(limits);
    for (requests, limits, expected) in [
        ("cpu=2 memory=1Gi", "cpu=2 memory=1Gi", 2),
        ("", "cpu=2 memory=1Gi", 2),
        ("cpu=1500m memory=1Gi", "cpu=1500m memory=1Gi", 0),
        ("cpu=2 memory=1Gi", "cpu=3 memory=1Gi", 0),
        ("cpu=2", "cpu=2", 0),
        ("", "", 0),
    ] {
        let pod = pod("a").containers(vec![asking(requests, limits)]).build();
        assert_eq!(exclusive(&pod, &pod.spec.containers[0]), expected, "{requests:?} | {limits:?}");
    }
}

#[test]
fn the_scope_decides_what_is_aligned() {
    let whole = |name: &str, count: u32| {
        let text = format!("cpu={count} memory=1Gi");
        container(name).requests(&text).limits(&text)
    };
    let inits = vec![whole("s", 1).sidecar(), whole("i", 4)];
    let pod = pod("a").inits(inits).containers(vec![whole("x", 2), whole("y", 1)]).build();
    let named = |name: &str, count| (Some(name.to_owned()), count);
    assert_eq!(wanted(Scope::Container, &pod), [named("s", 1), named("i", 4), named("x", 2), named("y", 1)]);
    assert_eq!(wanted(Scope::Pod, &pod), [(None, 5)]);
}

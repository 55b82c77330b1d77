use muster_proto::pb;

use super::*;
use crate::testing::{PodBuilder, container, pod, security_policy as strict, uid};

fn range(text: &str) -> IdRange {
    text.parse().unwrap()
}

fn asking(given: pb::SecurityContext) -> PodBuilder {
    let mut main = container("main");
    main.security_context = Some(given);
    pod("a").containers(vec![container("other"), main])
}

fn user(id: i64) -> pb::SecurityContext {
    pb::SecurityContext { run_as_user: Some(id), ..Default::default() }
}

fn group(id: i64) -> pb::SecurityContext {
    pb::SecurityContext { run_as_group: Some(id), ..Default::default() }
}

#[test]
fn ranges_are_read_as_they_are_written() {
    for (text, expected) in [
        ("1000", Some((1000, 1000))),
        (" 3000 - 3999 ", Some((3000, 3999))),
        ("0-4294967294", Some((0, 4_294_967_294))),
        ("4294967295", None),
        ("2-1", None),
        ("", None),
        ("a", None),
        ("1-2-3", None),
        ("-1", None),
    ] {
        let found = text.parse::<IdRange>().ok().map(|range| (range.first, range.last));
        assert_eq!(found, expected, "{text:?}");
    }
    assert_eq!(range("3000-3999").to_string(), "3000-3999");
    let refused = "x-1".parse::<IdRange>().unwrap_err().to_string();
    assert!(refused.contains("\"x-1\" must be an id"), "{refused}");
}

#[test]
fn ranges_overlap_where_they_share_an_id() {
    for (a, b, expected) in [
        ("1-3", "3-5", true),
        ("1-3", "4-5", false),
        ("4-5", "1-3", false),
        ("1-9", "4", true),
        ("4", "1-9", true),
    ] {
        assert_eq!(range(a).overlaps(&range(b)), expected, "{a} {b}");
    }
}

#[test]
fn every_id_of_a_range_is_picked_once() {
    let ids = range("100-103");
    let mut taken: Vec<u32> = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let picked = ids.pick(uid(name), |id| taken.contains(&id)).unwrap();
        assert!(ids.contains(picked) && !taken.contains(&picked), "{picked} after {taken:?}");
        taken.push(picked);
    }
    assert_eq!(ids.pick(uid("e"), |id| taken.contains(&id)), None);
    assert_eq!(ids.pick(uid("a"), |_| false), ids.pick(uid("a"), |_| false), "a pod starts at one place");
    assert_eq!(range("4294967294").pick(uid("a"), |_| false), Some(4_294_967_294));
}

#[test]
fn a_pod_gets_what_the_agent_allows_and_no_more() {
    let privileged = || pb::SecurityContext { privileged: Some(true), ..Default::default() };
    let escalating = || pb::SecurityContext { allow_privilege_escalation: Some(true), ..Default::default() };
    let non_root = |given| pb::SecurityContext { run_as_non_root: Some(true), ..given };
    let permissive = PodSecurityPolicy { allow_privileged: true, ..strict() };
    let listed = PodSecurityPolicy { allowed_ids: vec![range("0"), range("1000-1999")], ..strict() };
    let rootless = PodSecurityPolicy { own_ids: None, agent: (1000, 1001), ..strict() };
    for (policy, given, expected) in [
        (&strict(), pb::SecurityContext::default(), ""),
        (&strict(), non_root(pb::SecurityContext::default()), ""),
        (&strict(), privileged(), "privileged, which this node does not allow (--allow-privileged"),
        (&strict(), escalating(), "allowPrivilegeEscalation, which this node does not allow"),
        (&strict(), user(0), "runAsUser 0, which this node does not allow (--allow-run-as"),
        (&strict(), user(2000), "runAsUser 2000, which"),
        (&strict(), group(0), "runAsGroup 0, which"),
        (&permissive, privileged(), ""),
        (&permissive, escalating(), ""),
        (&permissive, user(0), ""),
        (&permissive, non_root(privileged()), "runAsNonRoot, and would run as root"),
        (&listed, user(1500), ""),
        (&listed, group(1999), ""),
        (&listed, user(0), ""),
        (&listed, user(2000), "runAsUser 2000"),
        (&listed, non_root(user(1500)), ""),
        (&listed, privileged(), "privileged"),
        (&rootless, pb::SecurityContext::default(), ""),
        (&rootless, user(1000), ""),
        (&rootless, group(1001), ""),
        (&rootless, user(1001), "runAsUser 1001, and this node's agent runs without root, as 1000"),
        (&PodSecurityPolicy { allow_privileged: true, ..rootless.clone() }, user(0), "runAsUser 0, and this"),
        (&PodSecurityPolicy { allow_privileged: true, ..rootless.clone() }, privileged(), ""),
    ] {
        let text = format!("{given:?}");
        let found = policy.rejection(&asking(given).build());
        match (found, expected) {
            (None, "") => {}
            (Some(found), expected) if !expected.is_empty() => {
                assert_eq!(found.reason, "SecurityContextDenied", "{text}");
                let start = format!("Pod was rejected: container main asks for {expected}");
                assert!(found.message.starts_with(&start), "{text}: {}", found.message);
            }
            (found, _) => panic!("{text}: {found:?}, not {expected:?}"),
        }
    }
}

#[test]
fn a_container_overrides_its_pod() {
    let mut pod = asking(user(7)).build();
    let of_pod =
        pb::PodSecurityContext { run_as_user: Some(5), run_as_group: Some(6), run_as_non_root: Some(true) };
    pod.spec.security_context = Some(of_pod);
    let asked = |name: &str| {
        let container = pod.spec.all_containers().find(|container| container.name == name).unwrap();
        Asked::by(&pod, container)
    };
    let inherited = Asked { user: Some(5), group: Some(6), non_root: true, ..Asked::default() };
    assert_eq!(asked("other"), inherited);
    assert_eq!(asked("main"), Asked { user: Some(7), ..inherited });
}

#[test]
fn root_asked_for_by_the_pod_is_refused_by_a_container_that_must_not_be_root() {
    let policy = PodSecurityPolicy { allow_privileged: true, ..strict() };
    let given = pb::SecurityContext { run_as_non_root: Some(true), ..Default::default() };
    let mut pod = asking(given).build();
    pod.spec.security_context = Some(pb::PodSecurityContext { run_as_user: Some(0), ..Default::default() });
    let found = policy.rejection(&pod).unwrap().message;
    assert!(found.contains("container main asks for runAsNonRoot, and would run as root"), "{found}");
}

use muster_proto::meta::Metadata;

use super::super::fixtures::*;
use super::*;

fn class(name: &str, value: i32) -> PriorityClass {
    PriorityClass {
        meta: Metadata::new(None, name.parse().unwrap()),
        value,
        global_default: false,
        description: String::new(),
        preemption_policy: PreemptionPolicy::default(),
    }
}

fn as_default(class: PriorityClass) -> PriorityClass {
    PriorityClass { global_default: true, ..class }
}

fn never(class: PriorityClass) -> PriorityClass {
    PriorityClass { preemption_policy: PreemptionPolicy::Never, ..class }
}

#[test]
fn reserved_names_and_values_of_the_system_are_refused() {
    for (name, value, expected) in [
        ("high", 1_000_000_000, ""),
        ("low", -2_000_000_000, ""),
        ("systematic", 1, ""),
        ("high", 1_000_000_001, "value: must be 1000000000 or less: what is above is for the system"),
        ("system-high", 1, "metadata.name: must not begin with system-: these names are reserved"),
        (
            "system-node-critical",
            2_000_001_000,
            "metadata.name: must not begin with system-: these names are reserved; value: must be 1000000000 or less: \
             what is above is for the system",
        ),
    ] {
        let created = create_priority_class(None, class(name, value), None, &at(0));
        let found = created.map(drop).map_err(|refusal| refusal.to_string());
        let expected = match expected {
            "" => Ok(()),
            reason => Err(format!("PriorityClass {name} is not valid: {reason}")),
        };
        assert_eq!(found, expected);
    }
    let taken = create_priority_class(Some(&class("high", 1)), class("high", 1), None, &at(0));
    assert_eq!(taken.unwrap_err().to_string(), "PriorityClass high already exists");
}

#[test]
fn there_is_one_global_default_at_most() {
    let held = as_default(class("a", 1));
    let refused = |wanted: PriorityClass| {
        create_priority_class(None, wanted, Some(&held), &at(0)).unwrap_err().to_string()
    };
    assert_eq!(
        refused(as_default(class("b", 1))),
        "PriorityClass b is not valid: globalDefault: must be false: a is the global default, and there can be only one"
    );
    let b = create_priority_class(None, class("b", 1), Some(&held), &at(0)).unwrap();
    let changed = |wanted, default| update_priority_class(Some(&b), wanted, default, &at(0));
    assert!(changed(as_default(b.clone()), Some(&held)).is_err());
    assert!(changed(as_default(b.clone()), None).unwrap().record().global_default);
    let held = create_priority_class(None, held, None, &at(0)).unwrap();
    let described = PriorityClass { description: "x".into(), ..held.clone() };
    assert!(update_priority_class(Some(&held), described, Some(&held), &at(0)).unwrap().is_change());
}

#[test]
fn value_and_policy_of_a_class_do_not_change() {
    let held = create_priority_class(None, class("a", 1), None, &at(0)).unwrap();
    for (wanted, expected) in [
        (PriorityClass { value: 2, ..held.clone() }, "value: cannot be changed after creation"),
        (never(held.clone()), "preemptionPolicy: cannot be changed after creation"),
    ] {
        let refused = update_priority_class(Some(&held), wanted, None, &at(0)).unwrap_err();
        assert_eq!(refused.to_string(), format!("PriorityClass a is not valid: {expected}"));
    }
}

#[test]
fn s210_a_new_pod_gets_the_priority_of_its_class() {
    let high = never(class("high", 1000));
    let default = as_default(class("usual", 10));
    let of = |name: &str, priority| {
        let mut pod = pod("p");
        pod.spec.priority_class_name = name.to_owned();
        pod.spec.priority = priority;
        pod
    };
    let preempts = Some(PreemptionPolicy::PreemptLowerPriority);
    for (mut pod, class, default, expected) in [
        (of("", None), None, None, ("", None, None)),
        (of("", Some(7)), None, None, ("", Some(7), None)),
        (of("", None), None, Some(&default), ("usual", Some(10), preempts)),
        (of("", Some(7)), None, Some(&default), ("", Some(7), None)),
        (of("high", None), Some(&high), None, ("high", Some(1000), Some(PreemptionPolicy::Never))),
        (
            of("high", Some(1000)),
            Some(&high),
            Some(&default),
            ("high", Some(1000), Some(PreemptionPolicy::Never)),
        ),
        (
            of("system-node-critical", None),
            None,
            None,
            ("system-node-critical", Some(2_000_001_000), preempts),
        ),
        (
            of("system-cluster-critical", None),
            None,
            None,
            ("system-cluster-critical", Some(2_000_000_000), preempts),
        ),
    ] {
        set_priority(&mut pod, class, default).unwrap();
        let spec = &pod.spec;
        assert_eq!((spec.priority_class_name.as_str(), spec.priority, spec.preemption_policy), expected);
    }
}

#[test]
fn s210_an_unknown_class_and_a_priority_that_contradicts_it_are_refused_by_name() {
    let high = class("high", 1000);
    let of = |name: &str, priority, policy| {
        let mut pod = pod("p");
        pod.spec.priority_class_name = name.to_owned();
        pod.spec.priority = priority;
        pod.spec.preemption_policy = policy;
        pod
    };
    for (mut pod, class, expected) in [
        (of("hihg", None, None), None, "spec.priorityClassName: there is no PriorityClass named hihg"),
        (
            of("system-x", None, None),
            None,
            "spec.priorityClassName: there is no PriorityClass named system-x",
        ),
        (
            of("high", Some(1), None),
            Some(&high),
            "spec.priority: must be absent or 1000, the value of PriorityClass high",
        ),
        (
            of("high", None, Some(PreemptionPolicy::Never)),
            Some(&high),
            "spec.preemptionPolicy: must be absent or PreemptLowerPriority, the policy of PriorityClass high",
        ),
        (
            of("system-node-critical", Some(1), None),
            None,
            "spec.priority: must be absent or 2000001000, the value of PriorityClass system-node-critical",
        ),
    ] {
        let refused = set_priority(&mut pod, class, None).unwrap_err();
        assert_eq!(refused.to_string(), format!("Pod default/p is not valid: {expected}"));
    }
}

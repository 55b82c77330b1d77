use super::TaintEffect::*;
use super::TolerationOperator::*;
use super::*;

fn toleration(
    key: &str,
    operator: TolerationOperator,
    value: &str,
    effect: Option<TaintEffect>,
    toleration_seconds: Option<i64>,
) -> Toleration {
    Toleration { key: key.into(), operator, value: value.into(), effect, toleration_seconds }
}

#[test]
fn effect_key_and_value_must_each_match_or_be_empty() {
    let taint = Taint::new("k", "v", NoExecute);
    for (tolerated, key, operator, value, effect) in [
        (true, "k", Equal, "v", Some(NoExecute)),
        (true, "k", Equal, "v", None),
        (true, "k", Exists, "", Some(NoExecute)),
        (true, "", Exists, "", None),
        (true, "", Exists, "", Some(NoExecute)),
        (false, "", Exists, "", Some(NoSchedule)),
        (false, "k", Equal, "w", Some(NoExecute)),
        (false, "k", Equal, "", None),
        (false, "j", Equal, "v", None),
        (false, "j", Exists, "", None),
        (false, "k", Equal, "v", Some(PreferNoSchedule)),
    ] {
        let toleration = toleration(key, operator, value, effect, None);
        assert_eq!(toleration.tolerates(&taint), tolerated, "{toleration:?}");
    }
}

#[test]
fn the_default_is_added_unless_the_pod_has_its_own() {
    let not_ready = Toleration::exists(keys::NOT_READY, NoExecute).for_seconds(300);
    let unreachable = Toleration::exists(keys::UNREACHABLE, NoExecute).for_seconds(200);
    let own_not_ready = |value, effect| toleration(keys::NOT_READY, Equal, value, effect, None);
    for (given, added) in [
        (vec![], vec![&not_ready, &unreachable]),
        (vec![own_not_ready("other", Some(NoExecute))], vec![&unreachable]),
        (vec![own_not_ready("", None)], vec![&unreachable]),
        (vec![own_not_ready("", Some(NoSchedule))], vec![&not_ready, &unreachable]),
        (vec![toleration("", Exists, "", None, None)], vec![]),
        (vec![toleration("", Exists, "", Some(NoExecute), Some(0))], vec![]),
        (vec![toleration("", Exists, "", Some(NoSchedule), None)], vec![&not_ready, &unreachable]),
        (daemon_tolerations(false), vec![]),
    ] {
        let mut list = given.clone();
        default_tolerations(&mut list, 300, 200);
        let expected: Vec<_> = given.iter().chain(added).cloned().collect();
        assert_eq!(list, expected);
        default_tolerations(&mut list, 300, 200);
        assert_eq!(list, expected, "a second time changes nothing");
    }
}

#[test]
fn daemons_tolerate_an_unhealthy_node() {
    let summary = |host_network| {
        let tolerations = daemon_tolerations(host_network).into_iter();
        tolerations.map(|t| (t.key, t.operator, t.effect, t.toleration_seconds)).collect::<Vec<_>>()
    };
    let entry = |name: &str, effect| (format!("node.kubernetes.io/{name}"), Exists, Some(effect), None);
    let mut expected = vec![
        entry("not-ready", NoExecute),
        entry("unreachable", NoExecute),
        entry("disk-pressure", NoSchedule),
        entry("memory-pressure", NoSchedule),
        entry("pid-pressure", NoSchedule),
        entry("unschedulable", NoSchedule),
    ];
    assert_eq!(summary(false), expected);
    expected.push(entry("network-unavailable", NoSchedule));
    assert_eq!(summary(true), expected);
}

#[test]
fn adding_replaces_the_toleration_of_the_same_taints() {
    let short = Toleration::exists("k", NoExecute).for_seconds(5);
    let endless = Toleration::exists("k", NoExecute);
    let other = Toleration::exists("k", NoSchedule);
    for (added, changed, expected) in [
        (&short, false, vec![&short]),
        (&endless, true, vec![&endless]),
        (&other, true, vec![&short, &other]),
    ] {
        let mut list = vec![short.clone()];
        assert_eq!(add_or_update_toleration(&mut list, added.clone()), changed);
        assert_eq!(list.iter().collect::<Vec<_>>(), expected);
    }
}

#[test]
fn an_update_may_add_tolerations_and_change_their_times() {
    let t1 = Toleration::exists("t1", NoExecute);
    let t2 = Toleration::exists("t2", NoExecute);
    for (new, allowed) in [
        (vec![t1.clone()], true),
        (vec![t1.clone(), t2.clone()], true),
        (vec![t2.clone(), t1.clone()], true),
        (vec![t1.clone().for_seconds(5)], true),
        (vec![t2.clone()], false),
        (vec![], false),
        (vec![Toleration { effect: None, ..t1.clone() }], false),
    ] {
        assert_eq!(only_extended(std::slice::from_ref(&t1), &new), allowed, "{new:?}");
    }
}

#[test]
fn rules_between_the_fields_of_a_toleration_are_checked() {
    for (toleration, expected) in [
        (toleration("", Exists, "", None, None), ""),
        (toleration("k", Equal, "", Some(NoExecute), Some(-1)), ""),
        (toleration("", Equal, "", None, None), "t[0].operator: must be Exists when key is empty"),
        (toleration("k", Exists, "x", None, None), "t[0].value: must be empty when operator is Exists"),
        (
            toleration("k", Exists, "", Some(NoSchedule), Some(5)),
            "t[0].effect: must be NoExecute when tolerationSeconds is set",
        ),
        (
            toleration("k", Exists, "", None, Some(5)),
            "t[0].effect: must be NoExecute when tolerationSeconds is set",
        ),
        (
            toleration("a/b/c", Equal, &"v".repeat(64), None, None),
            "t[0].key: must be a name or prefix/name, with one '/' at most; \
             t[0].value: must be 63 bytes or fewer",
        ),
    ] {
        let mut check = Check::new();
        check_tolerations(&mut check, &Path::ROOT.key("t"), std::slice::from_ref(&toleration));
        let found = check.finish(()).map_or_else(|invalid| invalid.to_string(), |()| String::new());
        assert_eq!(found, expected, "{toleration:?}");
    }
}

#[test]
fn an_operator_left_out_is_equal() {
    for (text, expected) in [("", Ok(Equal)), ("Equal", Ok(Equal)), ("Exists", Ok(Exists))] {
        assert_eq!(text.parse::<TolerationOperator>(), expected, "{text:?}");
    }
    for text in ["Gt", "Lt", "exists"] {
        assert_eq!(text.parse::<TolerationOperator>(), Err(TolerationOperatorError), "{text:?}");
    }
}

use proptest::prelude::*;

use super::*;
use crate::budget::UnhealthyPodEvictionPolicy;
use crate::convert::testing::{any_metadata, any_time, at, complaints, map, named, stored};
use crate::percent::{IntOrPercent, Percent};

fn with_spec(spec: pb::DisruptionBudgetSpec) -> pb::DisruptionBudget {
    pb::DisruptionBudget { metadata: named("x", "b"), spec: Some(spec), status: None }
}

fn limits(min: &str, max: &str) -> pb::DisruptionBudget {
    let (min_available, max_unavailable) = (min.into(), max.into());
    with_spec(pb::DisruptionBudgetSpec { min_available, max_unavailable, ..Default::default() })
}

#[test]
fn exactly_one_limit_must_be_given() {
    use DisruptionLimit::{MaxUnavailable, MinAvailable};
    use IntOrPercent::Int;
    let third = IntOrPercent::Percent(Percent::new(33).unwrap());
    for (min, max, expected) in
        [("2", "", MinAvailable(Int(2))), ("0", "", MinAvailable(Int(0))), ("", "33%", MaxUnavailable(third))]
    {
        assert_eq!(stored::<DisruptionBudget>(limits(min, max)).spec.limit, expected);
    }
    for (min, max, expected) in [
        ("", "", "spec.minAvailable: is required, unless maxUnavailable is given"),
        ("1", "1", "spec.maxUnavailable: must not be given together with minAvailable"),
        ("101%", "", "spec.minAvailable: must be 100% or less"),
        ("", "-1", "spec.maxUnavailable: must not be negative"),
        ("", "some", "spec.maxUnavailable: must be a whole number such as 3, or a percentage such as 30%"),
    ] {
        assert_eq!(complaints::<DisruptionBudget>(limits(min, max)), expected);
    }
}

#[test]
fn everything_wrong_with_a_budget_is_reported_at_once() {
    let expression = |key: &str, operator: &str, values: &[&str]| pb::LabelSelectorRequirement {
        key: key.into(),
        operator: operator.into(),
        values: values.iter().map(ToString::to_string).collect(),
    };
    let selector = pb::LabelSelector {
        match_labels: map(&[("a b", "c"), ("ok", "c"), ("x", "_")]),
        match_expressions: vec![
            expression("a", "in", &["b"]),
            expression("a", "In", &[]),
            expression("a", "Exists", &[]),
            expression("a", "Exists", &["b"]),
        ],
    };
    let budget = pb::DisruptionBudget {
        metadata: None,
        spec: Some(pb::DisruptionBudgetSpec {
            selector: Some(selector),
            unhealthy_pod_eviction_policy: "Never".into(),
            ..Default::default()
        }),
        status: Some(pb::DisruptionBudgetStatus {
            disrupted_pods: [("A".to_owned(), at(0, -1).unwrap())].into(),
            ..Default::default()
        }),
    };
    let found = DisruptionBudget::try_from(budget).unwrap_err();
    let fields: Vec<&str> = found.violations.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "metadata.name",
            "metadata.namespace",
            "spec.selector.matchLabels[\"a b\"]",
            "spec.selector.matchLabels[\"x\"]",
            "spec.selector.matchExpressions[0].operator",
            "spec.selector.matchExpressions[1]",
            "spec.selector.matchExpressions[3]",
            "spec.minAvailable",
            "spec.unhealthyPodEvictionPolicy",
            "status.disruptedPods[\"A\"]",
            "status.disruptedPods[\"A\"]",
        ]
    );
}

#[test]
fn a_selector_that_is_absent_or_empty_means_every_pod() {
    let mut given = limits("1", "");
    let absent = stored::<DisruptionBudget>(given.clone());
    given.spec.as_mut().unwrap().selector = Some(pb::LabelSelector::default());
    assert_eq!(stored::<DisruptionBudget>(given), absent);
    assert!(absent.spec.selector.is_everything());
    assert_eq!(absent.spec.unhealthy_pod_eviction_policy, UnhealthyPodEvictionPolicy::IfHealthyBudget);
}

#[test]
fn pairs_and_expressions_go_back_where_they_came_from() {
    let given = pb::LabelSelector {
        match_labels: map(&[("app", "x"), ("zone", "")]),
        match_expressions: vec![pb::LabelSelectorRequirement {
            key: "app".into(),
            operator: "NotIn".into(),
            values: vec!["y".into(), "z".into()],
        }],
    };
    let mut budget = limits("1", "");
    budget.spec.as_mut().unwrap().selector = Some(given.clone());
    assert_eq!(pb::LabelSelector::from(stored::<DisruptionBudget>(budget).spec.selector), given);
}

proptest! {
    #[test]
    fn a_budget_comes_back_as_it_was_stored(
        metadata in any_metadata("x"),
        match_labels in prop::collection::btree_map("[a-c]", "[a-c]{0,2}", 0..3),
        expressions in prop::collection::vec(("[a-c]", 0..4usize, "[a-c]{0,2}", any::<bool>()), 0..4),
        (amount, percent, is_min, always) in (0..=100u32, any::<bool>(), any::<bool>(), any::<bool>()),
        disrupted in prop::collection::btree_map("[a-z]{1,3}", any_time(), 0..3),
        numbers in any::<[i32; 4]>(),
    ) {
        let match_expressions = expressions.into_iter().map(|(key, operator, value, two)| {
            let mut values = if operator < 2 { vec![value] } else { Vec::new() };
            if operator < 2 && two {
                values.push("z".to_owned());
            }
            let operator = ["In", "NotIn", "Exists", "DoesNotExist"][operator].into();
            pb::LabelSelectorRequirement { key, operator, values }
        });
        let limit = format!("{amount}{}", if percent { "%" } else { "" });
        let none = String::new();
        let (min_available, max_unavailable) = if is_min { (limit, none) } else { (none, limit) };
        let spec = pb::DisruptionBudgetSpec {
            selector: Some(pb::LabelSelector { match_labels, match_expressions: match_expressions.collect() }),
            min_available,
            max_unavailable,
            unhealthy_pod_eviction_policy: if always { "AlwaysAllow".into() } else { String::new() },
        };
        let disrupted = disrupted.into_iter();
        let status = pb::DisruptionBudgetStatus {
            disruptions_allowed: numbers[0],
            current_healthy: numbers[1],
            desired_healthy: numbers[2],
            expected_pods: numbers[3],
            disrupted_pods: disrupted.filter_map(|(name, time)| Some((name, time?))).collect(),
            observed_generation: 1,
        };
        stored::<DisruptionBudget>(pb::DisruptionBudget { metadata, spec: Some(spec), status: Some(status) });
    }
}

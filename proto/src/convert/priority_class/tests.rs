use proptest::prelude::*;

use super::*;
use crate::convert::testing::{any_metadata, complaints, named, stored};
use crate::priority_class::PreemptionPolicy;

#[test]
fn everything_wrong_with_a_class_is_reported_at_once() {
    let class = pb::PriorityClass {
        metadata: named("", "High"),
        description: "x".repeat(1025),
        preemption_policy: "Always".into(),
        ..Default::default()
    };
    let found = PriorityClass::try_from(class).unwrap_err();
    let fields: Vec<&str> = found.violations.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(fields, ["metadata.name", "description", "preemptionPolicy"]);
}

#[test]
fn a_class_has_no_namespace_and_preempts_unless_it_says_otherwise() {
    let class = |namespace: &str, policy: &str| pb::PriorityClass {
        metadata: named(namespace, "high"),
        value: 7,
        preemption_policy: policy.into(),
        ..Default::default()
    };
    assert!(complaints::<PriorityClass>(class("x", "")).starts_with("metadata.namespace: "));
    let policy = |text: &str| stored::<PriorityClass>(class("", text)).preemption_policy;
    assert_eq!(policy(""), PreemptionPolicy::PreemptLowerPriority);
    assert_eq!(policy("Never"), PreemptionPolicy::Never);
}

proptest! {
    #[test]
    fn a_class_comes_back_as_it_was_stored(
        metadata in any_metadata(""),
        (value, global_default, never) in (any::<i32>(), any::<bool>(), any::<bool>()),
        description in "[a-z ]{0,9}",
    ) {
        let preemption_policy = if never { "Never".into() } else { String::new() };
        stored::<PriorityClass>(pb::PriorityClass {
            metadata,
            value,
            global_default,
            description,
            preemption_policy,
        });
    }
}

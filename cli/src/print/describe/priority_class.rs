//! The page of a priority class.

use muster_proto::priority_class::PriorityClass;

use super::fields::Fields;

/// The page of `muster describe priorityclass`.
pub(crate) fn page(class: &PriorityClass) -> String {
    Fields::top()
        .add("Name", class.meta.name.as_str())
        .add("Value", class.value.to_string())
        .add("Global Default", class.global_default.to_string())
        .add("Preemption Policy", class.preemption_policy.to_string())
        .add_some("Description", &class.description)
        .pairs("Labels", &class.meta.labels, "=")
        .pairs("Annotations", &class.meta.annotations, ": ")
        .text()
}

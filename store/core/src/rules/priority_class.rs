//! Rules for priority classes, and how a pod gets the priority of its class.

use muster_proto::invalid::{Check, Invalid, Path};
use muster_proto::pod::Pod;
use muster_proto::priority_class::{
    MAX_USER_VALUE, PreemptionPolicy, PriorityClass, RESERVED_PREFIX, system_value,
};

use super::{Context, DeletedWithoutGrace, Outcome, RecordId, Refusal, Rules, common};

#[cfg(test)]
mod tests;

impl Rules for PriorityClass {
    fn prepare_create(&mut self, _cx: &Context) {
        self.meta.generation = 1;
    }

    fn validate_update(&self, old: &Self, check: &mut Check) {
        // Pods keep the value that they got: another one would make the class mean two priorities.
        let fixed = "cannot be changed after creation";
        check.ensure(&Path::ROOT.key("value"), self.value == old.value, fixed);
        let same_policy = self.preemption_policy == old.preemption_policy;
        check.ensure(&Path::ROOT.key("preemptionPolicy"), same_policy, fixed);
    }
}

impl DeletedWithoutGrace for PriorityClass {}

/// The record to store for a new class. `default` is the class that is the global default now.
pub fn create_priority_class(
    current: Option<&PriorityClass>,
    wanted: PriorityClass,
    default: Option<&PriorityClass>,
    cx: &Context,
) -> Result<PriorityClass, Refusal> {
    let mut check = Check::new();
    let root = Path::ROOT;
    let is_free = !wanted.meta.name.as_str().starts_with(RESERVED_PREFIX);
    check.ensure(
        &root.key("metadata").key("name"),
        is_free,
        format_args!("must not begin with {RESERVED_PREFIX}: these names are reserved"),
    );
    check.ensure(
        &root.key("value"),
        wanted.value <= MAX_USER_VALUE,
        format_args!("must be {MAX_USER_VALUE} or less: what is above is for the system"),
    );
    let key = RecordId::of(&wanted);
    let invalid = |invalid| Refusal::Invalid { key: key.clone(), invalid };
    let wanted = check.finish(wanted).map_err(invalid)?;
    check_only_default(&wanted, default)?;
    common::create(current, wanted, cx)
}

/// The outcome of an update of a class.
pub fn update_priority_class(
    current: Option<&PriorityClass>,
    wanted: PriorityClass,
    default: Option<&PriorityClass>,
    cx: &Context,
) -> Result<Outcome<PriorityClass>, Refusal> {
    let outcome = common::update(current, wanted, cx)?;
    check_only_default(outcome.record(), default)?;
    Ok(outcome)
}

/// Refuses a second global default.
fn check_only_default(wanted: &PriorityClass, default: Option<&PriorityClass>) -> Result<(), Refusal> {
    match default {
        Some(default) if wanted.global_default && default.meta.name != wanted.meta.name => {
            let name = &default.meta.name;
            let why = format!("must be false: {name} is the global default, and there can be only one");
            Err(Refusal::Invalid { key: RecordId::of(wanted), invalid: Invalid::of("globalDefault", why) })
        }
        _ => Ok(()),
    }
}

/// Gives a new pod the priority and the preemption policy of its class.
///
/// `class` is the record that the pod's class names, `default` the global default. A pod without a class gets the
/// default one, unless it states a priority of its own.
pub fn set_priority(
    pod: &mut Pod,
    class: Option<&PriorityClass>,
    default: Option<&PriorityClass>,
) -> Result<(), Refusal> {
    let key = RecordId::of(pod);
    let spec = &mut pod.spec;
    let refuse = |field: &str, why: String| {
        Err(Refusal::Invalid { key: key.clone(), invalid: Invalid::of(field, why) })
    };
    let (value, policy) = if spec.priority_class_name.is_empty() {
        let Some(default) = default.filter(|_| spec.priority.is_none()) else { return Ok(()) };
        spec.priority_class_name = default.meta.name.to_string();
        (default.value, default.preemption_policy)
    } else {
        let name = &spec.priority_class_name;
        match (system_value(name), class) {
            (Some(value), _) => (value, PreemptionPolicy::default()),
            (None, Some(class)) => (class.value, class.preemption_policy),
            (None, None) => {
                return refuse("spec.priorityClassName", format!("there is no PriorityClass named {name}"));
            }
        }
    };
    let name = &spec.priority_class_name;
    if spec.priority.is_some_and(|stated| stated != value) {
        return refuse(
            "spec.priority",
            format!("must be absent or {value}, the value of PriorityClass {name}"),
        );
    }
    if spec.preemption_policy.is_some_and(|stated| stated != policy) {
        let why = format!("must be absent or {policy}, the policy of PriorityClass {name}");
        return refuse("spec.preemptionPolicy", why);
    }
    spec.priority = Some(value);
    spec.preemption_policy = Some(policy);
    Ok(())
}

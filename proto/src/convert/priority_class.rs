//! Priority classes.

use super::meta::meta_in;
use crate::invalid::{Check, Invalid, Path};
use crate::pb;
use crate::priority_class::PriorityClass;
use crate::record::Kind;

#[cfg(test)]
mod tests;

/// The longest description, in bytes.
const MAX_DESCRIPTION: usize = 1024;

impl TryFrom<pb::PriorityClass> for PriorityClass {
    type Error = Invalid;

    fn try_from(class: pb::PriorityClass) -> Result<Self, Invalid> {
        let pb::PriorityClass { metadata, value, global_default, description, preemption_policy } = class;
        let mut check = Check::new();
        let root = Path::ROOT;
        let meta = meta_in(&mut check, &root.key("metadata"), Kind::PriorityClass, metadata);
        let is_short = description.len() <= MAX_DESCRIPTION;
        check.ensure(&root.key("description"), is_short, "must be 1024 bytes or fewer");
        let policy = check.field(&root.key("preemptionPolicy"), preemption_policy.parse());
        check.finish_some(meta.zip(policy).map(|(meta, preemption_policy)| PriorityClass {
            meta,
            value,
            global_default,
            description,
            preemption_policy,
        }))
    }
}

impl From<PriorityClass> for pb::PriorityClass {
    fn from(class: PriorityClass) -> Self {
        let PriorityClass { meta, value, global_default, description, preemption_policy } = class;
        let preemption_policy = preemption_policy.to_string();
        Self { metadata: Some(meta.into()), value, global_default, description, preemption_policy }
    }
}

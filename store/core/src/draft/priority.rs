//! The priority classes as of the batch so far.

use muster_proto::pod::Pod;
use muster_proto::priority_class::PriorityClass;

use super::Draft;
use crate::error::DraftError;
use crate::rules;

impl Draft<'_> {
    /// The class that pods without a class get, if there is one.
    pub fn default_priority_class(&self) -> Result<Option<PriorityClass>, DraftError> {
        self.indexes.default_class().map_or(Ok(None), |key| self.get_by_key(key))
    }

    /// Gives a new pod the priority of its class.
    pub fn set_priority(&self, pod: &mut Pod) -> Result<(), DraftError> {
        let class = match pod.spec.priority_class_name.as_str() {
            "" => None,
            name => self.get::<PriorityClass>("", name)?,
        };
        Ok(rules::set_priority(pod, class.as_ref(), self.default_priority_class()?.as_ref())?)
    }
}

//! Rules for nodes: the taint of a new node, and fields that can be set only once.

use muster_proto::invalid::{Check, Path};
use muster_proto::node::Node;
use muster_proto::taint::{Taint, TaintEffect};
use muster_proto::wellknown::taint;

use super::{Context, DeletedWithoutGrace, HasStatus, Rules};

#[cfg(test)]
mod tests;

impl Rules for Node {
    /// Keeps pods away until the controller has seen the node Ready. The new record may say Ready, but that may no
    /// longer be true when it is stored.
    fn prepare_create(&mut self, _cx: &Context) {
        let taints = &mut self.spec.taints;
        if !taints.iter().any(|held| held.is(taint::NOT_READY, TaintEffect::NoSchedule)) {
            taints.push(Taint::new(taint::NOT_READY, "", TaintEffect::NoSchedule));
        }
    }

    fn prepare_update(&mut self, old: &Self, _cx: &Context) {
        self.status.clone_from(&old.status);
    }

    fn validate_update(&self, old: &Self, check: &mut Check) {
        let root = Path::ROOT;
        let spec = root.key("spec");
        let was = &old.spec;
        if !was.pod_cidrs.is_empty() && was.pod_cidrs != self.spec.pod_cidrs {
            check.fail(&spec.key("podCidrs"), "cannot be changed or cleared once set");
        }
        if !was.provider_id.is_empty() && was.provider_id != self.spec.provider_id {
            check.fail(&spec.key("providerId"), "cannot be changed or cleared once set");
        }
    }
}

impl HasStatus for Node {
    fn prepare_status_update(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
    }
}

impl DeletedWithoutGrace for Node {}

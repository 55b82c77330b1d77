//! Rules for nodes: the taint of a new node, cordons by `spec.unschedulable`, and fields that can be set only once.

use jiff::Timestamp;
use muster_proto::drain::{Cordon, FIELD_OWNER};
use muster_proto::invalid::{Check, Path};
use muster_proto::node::{Node, NodeSpec};
use muster_proto::taint::{Taint, TaintEffect};
use muster_proto::wellknown::taint;

use super::{Context, DeletedWithoutGrace, HasStatus, Rules};

#[cfg(test)]
mod tests;

impl Rules for Node {
    /// Keeps pods away until the controller has seen the node Ready. The new record may say Ready, but that may no
    /// longer be true when it is stored.
    fn prepare_create(&mut self, cx: &Context) {
        settle_cordons(&mut self.spec, &NodeSpec::default(), cx.now);
        let taints = &mut self.spec.taints;
        if !taints.iter().any(|held| held.is(taint::NOT_READY, TaintEffect::NoSchedule)) {
            taints.push(Taint::new(taint::NOT_READY, "", TaintEffect::NoSchedule));
        }
    }

    fn prepare_update(&mut self, old: &Self, cx: &Context) {
        self.status.clone_from(&old.status);
        settle_cordons(&mut self.spec, &old.spec, cx.now);
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

/// Makes the cordons and `spec.unschedulable` agree.
///
/// A client that knows nothing of cordons, such as kubectl, sends them back as it read them and changes only the field:
/// that adds or removes the cordon of the field, and leaves those of others.
fn settle_cordons(spec: &mut NodeSpec, old: &NodeSpec, now: Timestamp) {
    let cordons = &mut spec.cordons;
    if *cordons == old.cordons && !spec.unschedulable {
        cordons.retain(|held| held.owner != FIELD_OWNER);
    }
    // Also a record from before there were cordons, and one whose cordons were all removed but not the field.
    let is_asked_for =
        spec.unschedulable && (cordons.is_empty() || !old.unschedulable && *cordons == old.cordons);
    if is_asked_for && !cordons.iter().any(|held| held.owner == FIELD_OWNER) {
        let held = old.cordons.iter().find(|held| held.owner == FIELD_OWNER);
        cordons.push(held.cloned().unwrap_or_else(|| Cordon::of_field(now)));
    }
    spec.unschedulable = !cordons.is_empty();
}

impl HasStatus for Node {
    fn prepare_status_update(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
    }
}

impl DeletedWithoutGrace for Node {}

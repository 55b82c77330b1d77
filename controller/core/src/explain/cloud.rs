//! Whether a node is deleted because its machine does not exist, and how many such deletions are still allowed.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_proto::node::Node;
use muster_proto::time::Mono;

use crate::cloud_nodes::initialization::InitializationStage;
use crate::cloud_nodes::machine_checks::{CloudAnswer, MachineCheck};
use crate::cloud_nodes::{CloudNodes, has_shutdown_taint, is_uninitialized};
use crate::explain::{Explanation, ExplanationAction, ExplanationState};
use crate::plan::uid;
use muster_proto::time::Now;

/// The limits that keep a cloud with wrong answers from deleting the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeletionLimitReport {
    /// How many answers in a row must say that a machine does not exist before its node is deleted.
    pub confirmations: u32,
    /// Nodes that may be deleted within a period.
    pub limit: u32,
    pub period: Duration,
    /// Nodes deleted within the last period.
    pub used: usize,
    /// Nodes that only the limit keeps from being deleted.
    pub held_back: usize,
}

impl CloudNodes {
    pub fn deletion_limit(&self, now: Now) -> DeletionLimitReport {
        let settings = self.checks.settings();
        DeletionLimitReport {
            confirmations: settings.confirmations.get(),
            limit: settings.delete_limit,
            period: settings.delete_period,
            used: self.checks.limit().used(now.mono),
            held_back: self.checks.limited(),
        }
    }

    /// Whether the node is deleted because its machine does not exist, and why it has the cloud's taints.
    pub fn explain(&self, node: &Node, hold_until: Mono, now: Now) -> Vec<Explanation> {
        let taints = [self.explain_off(node), self.explain_undescribed(node)];
        let deletion = self.explain_deletion(node, hold_until, now);
        std::iter::once(deletion).chain(taints.into_iter().flatten()).collect()
    }

    fn explain_deletion(&self, node: &Node, hold_until: Mono, now: Now) -> Explanation {
        let check = node.meta.uid.and_then(|uid| self.checks.get(uid));
        let (state, reason, earliest) = match check {
            _ if node.meta.deletion_timestamp.is_some() => {
                (ExplanationState::Done, "The node is being deleted.".to_owned(), None)
            }
            Some(check) if now.mono < hold_until && check.last != CloudAnswer::Deleted => {
                let left =
                    self.checks.settings().confirmations.get().saturating_sub(check.missing_answers).max(1);
                let reason = "The cloud is not asked before the eviction hold ends.".to_owned();
                (
                    ExplanationState::Paused,
                    reason,
                    Some(hold_until + self.checks.settings().period * (left - 1)),
                )
            }
            Some(check) => self.prospects(node, check, now),
            None if node.is_ready() => (
                ExplanationState::None,
                "A node that is Ready is never deleted, whatever the cloud answers.".to_owned(),
                None,
            ),
            None => (ExplanationState::Waiting, "The controller has not seen the node yet.".to_owned(), None),
        };
        let limit = self.deletion_limit(now);
        let inputs = [
            ("denials", check.map_or(0, |check| check.missing_answers).to_string()),
            ("confirmations", limit.confirmations.to_string()),
            ("deleted", limit.used.to_string()),
            ("limit", limit.limit.to_string()),
            ("heldBack", limit.held_back.to_string()),
        ];
        explanation(ExplanationAction::DeleteNode, state, reason, earliest, inputs)
    }

    /// Whether a node that is not Ready is deleted.
    fn prospects(
        &self,
        node: &Node,
        check: &MachineCheck,
        now: Now,
    ) -> (ExplanationState, String, Option<Mono>) {
        let (settings, limit) = (self.checks.settings(), self.checks.limit());
        let (denials, wanted) = (check.missing_answers, settings.confirmations.get());
        match &check.last {
            CloudAnswer::NotAsked => {
                (ExplanationState::Waiting, "The cloud has not been asked yet.".to_owned(), None)
            }
            CloudAnswer::Exists if check.is_off => (
                ExplanationState::None,
                "The cloud answers that the machine exists and is switched off.".to_owned(),
                None,
            ),
            CloudAnswer::Exists => {
                (ExplanationState::None, "The cloud answers that the machine exists.".to_owned(), None)
            }
            CloudAnswer::Failed(reason) => {
                (ExplanationState::None, format!("The cloud did not answer: {reason}."), None)
            }
            CloudAnswer::Deleted => {
                (ExplanationState::Done, "The node was deleted: its machine does not exist.".to_owned(), None)
            }
            CloudAnswer::Missing if check.is_limited => {
                let why = self.checks.why_limited();
                (
                    ExplanationState::Paused,
                    format!("The machine does not exist, but {why}."),
                    limit.next_allowed_at(now.mono),
                )
            }
            CloudAnswer::Missing if denials >= wanted && !self.checks.record().is_known() => {
                let why = self.checks.record().why_unknown().unwrap_or("the store is being read");
                let reason = format!(
                    "The machine does not exist, but the number of earlier deletions is not known yet: {why}."
                );
                (ExplanationState::Waiting, reason, None)
            }
            CloudAnswer::Missing if denials >= wanted => (
                ExplanationState::Due,
                "The machine does not exist: the node is being deleted.".to_owned(),
                Some(now.mono),
            ),
            CloudAnswer::Missing => {
                let reason = format!(
                    "The cloud answered {denials} of {wanted} times in a row that the machine does not exist; the node is deleted after {wanted}."
                );
                let due_at = self.checks.due_at(&node.meta.name, uid(&node.meta));
                let earliest = due_at.map(|at| at + settings.period * (wanted - denials - 1));
                (ExplanationState::Waiting, reason, earliest)
            }
        }
    }

    fn explain_off(&self, node: &Node) -> Option<Explanation> {
        let is_off = node.meta.uid.is_some_and(|uid| self.checks.is_off(uid));
        let (action, state, reason) = match (has_shutdown_taint(node), node.is_ready()) {
            (true, true) => (
                ExplanationAction::Untaint,
                ExplanationState::Due,
                "The node is Ready, so its machine is not switched off.",
            ),
            (true, false) => (
                ExplanationAction::Untaint,
                ExplanationState::Waiting,
                "The taint of a machine that is switched off stays until the node is Ready.",
            ),
            (false, false) if is_off => (
                ExplanationAction::Taint,
                ExplanationState::Due,
                "The cloud answers that the machine is switched off.",
            ),
            (false, _) => return None,
        };
        Some(explanation(action, state, reason.to_owned(), None, []))
    }

    fn explain_undescribed(&self, node: &Node) -> Option<Explanation> {
        if !is_uninitialized(node) {
            return None;
        }
        let (state, reason) = match node.meta.uid.and_then(|uid| self.initialization.stage(uid)) {
            Some(InitializationStage::Described(_) | InitializationStage::Initialized(_)) => {
                (ExplanationState::Due, "The cloud's description of the machine is being written.".to_owned())
            }
            Some(InitializationStage::Unknown(Some(reason))) => (
                ExplanationState::Waiting,
                format!("The cloud did not describe the machine: {reason}. It is asked again."),
            ),
            Some(InitializationStage::Unknown(None)) | None => (
                ExplanationState::Waiting,
                "The cloud has not been asked to describe the machine yet.".to_owned(),
            ),
        };
        Some(explanation(ExplanationAction::Untaint, state, reason, None, []))
    }
}

fn explanation<const N: usize>(
    action: ExplanationAction,
    state: ExplanationState,
    reason: String,
    earliest: Option<Mono>,
    inputs: [(&str, String); N],
) -> Explanation {
    let inputs: BTreeMap<String, String> = inputs.map(|(name, value)| (name.to_owned(), value)).into();
    Explanation { action, state, reason, inputs, earliest, decision: 0 }
}

//! Whether a node is deleted because its machine does not exist, and how many such deletions are still allowed.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_proto::node::Node;
use muster_proto::time::Mono;

use crate::cloud_nodes::initialization::Stage;
use crate::cloud_nodes::machine_checks::{Suspect, Verdict};
use crate::cloud_nodes::{Cloud, is_marked_off, is_undescribed};
use crate::explain::{Explanation, ExplanationAction, ExplanationState};
use crate::plan::uid;
use muster_proto::time::Now;

/// The limits that keep a cloud with wrong answers from deleting the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrakeReport {
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

impl Cloud {
    pub fn brake(&self, now: Now) -> BrakeReport {
        let settings = &self.suspects.settings;
        BrakeReport {
            confirmations: settings.confirmations.get(),
            limit: settings.delete_limit,
            period: settings.delete_period,
            used: self.suspects.brake.used(now.mono),
            held_back: self.suspects.held_back,
        }
    }

    /// Whether the node is deleted because its machine does not exist, and why it has the cloud's taints.
    pub fn explain(&self, node: &Node, hold_until: Mono, now: Now) -> Vec<Explanation> {
        let taints = [self.explain_off(node), self.explain_undescribed(node)];
        let deletion = self.explain_deletion(node, hold_until, now);
        std::iter::once(deletion).chain(taints.into_iter().flatten()).collect()
    }

    fn explain_deletion(&self, node: &Node, hold_until: Mono, now: Now) -> Explanation {
        let suspect = node.meta.uid.and_then(|uid| self.suspects.nodes.get(&uid));
        let (state, reason, earliest) = match suspect {
            _ if node.meta.deletion_timestamp.is_some() => {
                (ExplanationState::Done, "The node is being deleted.".to_owned(), None)
            }
            Some(suspect) if now.mono < hold_until && suspect.last != Verdict::Deleted => {
                let left = self.suspects.settings.confirmations.get().saturating_sub(suspect.denials).max(1);
                let reason = "The cloud is not asked before the eviction hold ends.".to_owned();
                (
                    ExplanationState::Paused,
                    reason,
                    Some(hold_until + self.suspects.settings.period * (left - 1)),
                )
            }
            Some(suspect) => self.prospects(node, suspect, now),
            None if node.is_ready() => (
                ExplanationState::None,
                "A node that is Ready is never deleted, whatever the cloud answers.".to_owned(),
                None,
            ),
            None => (ExplanationState::Waiting, "The controller has not seen the node yet.".to_owned(), None),
        };
        let brake = self.brake(now);
        let inputs = [
            ("denials", suspect.map_or(0, |suspect| suspect.denials).to_string()),
            ("confirmations", brake.confirmations.to_string()),
            ("deleted", brake.used.to_string()),
            ("limit", brake.limit.to_string()),
            ("heldBack", brake.held_back.to_string()),
        ];
        explanation(ExplanationAction::DeleteNode, state, reason, earliest, inputs)
    }

    /// Whether a node that is not Ready is deleted.
    fn prospects(
        &self,
        node: &Node,
        suspect: &Suspect,
        now: Now,
    ) -> (ExplanationState, String, Option<Mono>) {
        let (settings, brake) = (&self.suspects.settings, &self.suspects.brake);
        let (denials, wanted) = (suspect.denials, settings.confirmations.get());
        match &suspect.last {
            Verdict::None => {
                (ExplanationState::Waiting, "The cloud has not been asked yet.".to_owned(), None)
            }
            Verdict::Exists if suspect.is_off => (
                ExplanationState::None,
                "The cloud answers that the machine exists and is switched off.".to_owned(),
                None,
            ),
            Verdict::Exists => {
                (ExplanationState::None, "The cloud answers that the machine exists.".to_owned(), None)
            }
            Verdict::Failed(reason) => {
                (ExplanationState::None, format!("The cloud did not answer: {reason}."), None)
            }
            Verdict::Deleted => {
                (ExplanationState::Done, "The node was deleted: its machine does not exist.".to_owned(), None)
            }
            Verdict::Denied if suspect.is_held_back => {
                let why = self.suspects.why_held_back();
                (
                    ExplanationState::Paused,
                    format!("The machine does not exist, but {why}."),
                    brake.lets_go_at(now.mono),
                )
            }
            Verdict::Denied if denials >= wanted && !self.suspects.memory.is_known() => {
                let why = self.suspects.memory.why_unknown().unwrap_or("the store is being read");
                let reason = format!(
                    "The machine does not exist, but the number of earlier deletions is not known yet: {why}."
                );
                (ExplanationState::Waiting, reason, None)
            }
            Verdict::Denied if denials >= wanted => (
                ExplanationState::Due,
                "The machine does not exist: the node is being deleted.".to_owned(),
                Some(now.mono),
            ),
            Verdict::Denied => {
                let reason = format!(
                    "The cloud answered {denials} of {wanted} times in a row that the machine does not exist; the node is deleted after {wanted}."
                );
                let due_at = self.suspects.due_at(&node.meta.name, uid(&node.meta));
                let earliest = due_at.map(|at| at + settings.period * (wanted - denials - 1));
                (ExplanationState::Waiting, reason, earliest)
            }
        }
    }

    fn explain_off(&self, node: &Node) -> Option<Explanation> {
        let is_off = node.meta.uid.is_some_and(|uid| self.suspects.is_off(uid));
        let (action, state, reason) = match (is_marked_off(node), node.is_ready()) {
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
        if !is_undescribed(node) {
            return None;
        }
        let (state, reason) = match node.meta.uid.and_then(|uid| self.newcomers.stage(uid)) {
            Some(Stage::Described(_) | Stage::Reachable(_)) => {
                (ExplanationState::Due, "The cloud's description of the machine is being written.".to_owned())
            }
            Some(Stage::Undescribed(Some(reason))) => (
                ExplanationState::Waiting,
                format!("The cloud did not describe the machine: {reason}. It is asked again."),
            ),
            Some(Stage::Undescribed(None)) | None => (
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
    Explanation { action, state, reason, inputs, earliest }
}

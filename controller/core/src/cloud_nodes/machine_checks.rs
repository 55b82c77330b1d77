//! Nodes that are not Ready: does the machine still exist, and is it shut down?
//!
//! The cloud is asked about one node after the other, about each once per period. A single answer that a machine does
//! not exist is not enough, and the number of deletions is limited: a cloud that answers wrongly, or is asked with the
//! wrong credentials, must not delete all nodes.

use std::collections::HashMap;

use jiff::SignedDuration;
use muster_proto::event::{Event, EventType};
use muster_proto::name::{Name, Uid};
use muster_proto::node::Node;
use muster_proto::time::Mono;

use super::deletion_limit::DeletionLimit;
use super::deletion_record::DeletionRecord;
use super::{NodeKey, Settings, has_shutdown_taint};
use crate::deadlines::Deadlines;
use crate::decision::causes;
use crate::plan::{
    Action, Answer, CloudQuestion, ControllerName, Failure, Plan, Subject, event, node_event, uid,
};
use crate::world::World;
use muster_proto::time::Now;

/// The checks of all nodes that are not Ready.
#[derive(Clone, Debug)]
pub(crate) struct MachineChecks {
    settings: Settings,
    limit: DeletionLimit,
    record: DeletionRecord,
    pub(super) nodes: HashMap<Uid, MachineCheck>,
    /// How many nodes are not deleted because of the limit.
    limited: usize,
    /// When the cloud is asked about each node again. One action is in flight for all nodes together: `step` has it.
    due: Deadlines<NodeKey>,
    /// The step in flight.
    step: Option<(Uid, CheckStep)>,
    /// The step that follows from the last answer.
    next: Option<(Uid, CheckStep)>,
    events: Vec<Event>,
}

/// What is known of the machine of a node that is not Ready.
#[derive(Clone, Debug)]
pub(crate) struct MachineCheck {
    name: Name,
    pub(crate) last: CloudAnswer,
    /// How many answers in a row said that the machine does not exist.
    pub(crate) missing_answers: u32,
    /// Whether the last answer said that the machine is shut down.
    pub(crate) is_off: bool,
    /// Whether the node is not deleted only because of the limit.
    pub(crate) is_limited: bool,
}

/// The cloud's last answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CloudAnswer {
    NotAsked,
    Exists,
    Missing,
    Failed(String),
    /// The machine is missing and the node was deleted; the watch has not shown that yet.
    Deleted,
}

/// A step of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckStep {
    Exists,
    Shutdown,
    /// Record in the store that the node is about to be deleted.
    RecordDeletion,
    /// The deletion is recorded: the limit counts it unless it is known not to have happened.
    Delete,
    /// A question whose answer is ignored.
    Obsolete,
}

impl MachineChecks {
    pub(crate) fn new(settings: Settings) -> MachineChecks {
        MachineChecks {
            settings,
            limit: DeletionLimit::new(settings.delete_limit, settings.delete_period),
            record: DeletionRecord::new(&settings),
            nodes: HashMap::new(),
            limited: 0,
            due: Deadlines::default(),
            step: None,
            next: None,
            events: Vec::new(),
        }
    }

    /// The node with a step in flight.
    pub(crate) fn in_flight(&self) -> Option<Uid> {
        self.step.map(|(uid, _)| uid)
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What is known of the node's machine, if the node is not Ready.
    pub(crate) fn get(&self, uid: Uid) -> Option<&MachineCheck> {
        self.nodes.get(&uid)
    }

    pub(crate) fn limit(&self) -> &DeletionLimit {
        &self.limit
    }

    pub(crate) fn record(&self) -> &DeletionRecord {
        &self.record
    }

    /// How many nodes are not deleted because of the limit.
    pub(crate) fn limited(&self) -> usize {
        self.limited
    }

    pub(crate) fn is_off(&self, uid: Uid) -> bool {
        self.nodes.get(&uid).is_some_and(|check| check.is_off)
    }

    /// A node that is not being deleted has changed.
    pub(crate) fn observe(&mut self, node: &Node, now: Mono) {
        let uid = uid(&node.meta);
        if node.is_ready() {
            self.forget(uid);
        } else if !self.nodes.contains_key(&uid) {
            let name = node.meta.name.clone();
            self.due.schedule((name.clone(), uid), now);
            let check = MachineCheck {
                name,
                last: CloudAnswer::NotAsked,
                missing_answers: 0,
                is_off: false,
                is_limited: false,
            };
            self.nodes.insert(uid, check);
        }
    }

    /// The node is Ready, or is being deleted: the cloud's answers about it are ignored.
    pub(crate) fn forget(&mut self, uid: Uid) {
        if let Some(check) = self.nodes.remove(&uid) {
            self.due.forget(&(check.name, uid));
            self.limited -= usize::from(check.is_limited);
        }
        self.next.take_if(|(next, step)| *next == uid && *step != CheckStep::Delete);
        if let Some((in_flight, step @ (CheckStep::Exists | CheckStep::Shutdown))) = &mut self.step
            && *in_flight == uid
        {
            *step = CheckStep::Obsolete;
        }
    }

    /// Reads the recorded deletions from the store, if they are not known.
    pub(crate) fn read_record(&mut self, now: Mono, plan: &mut Plan) {
        self.record.read_if_unknown(now, plan);
    }

    /// The outcome of reading or writing the recorded deletions.
    pub(crate) fn settle_record(&mut self, result: &Result<Answer, Failure>, now: Now) {
        if self.record.is_reading() {
            if let Some(until) = self.record.set_read(result, now) {
                self.limit.set_deletions(until);
            }
        } else if let Some((uid, _)) = self.step.take_if(|(_, step)| *step == CheckStep::RecordDeletion) {
            if self.record.set_written(result, now) {
                self.next = Some((uid, CheckStep::Delete));
            } else {
                // The cloud is asked again, and by then the record was read again.
                self.limit.cancel();
            }
        }
    }

    pub(crate) fn decide(&mut self, other_in_flight: Option<Uid>, world: &World, now: Now, plan: &mut Plan) {
        plan.events.append(&mut self.events);
        if self.step.is_some() {
            return;
        }
        if let Some((uid, step)) = self.next.take() {
            self.follow_up(uid, step, world, now, plan);
        }
        if self.step.is_some() {
            return;
        }
        let due = self.due.iter().find(|(_, (_, uid))| Some(*uid) != other_in_flight);
        let Some((at, &(_, uid))) = due else { return };
        if at > now.mono {
            return plan.wake_by(at);
        }
        self.ask_again_later(uid, now.mono);
        self.act(uid, CheckStep::Exists, world, plan);
    }

    /// The outcome of a step. Returns whether the node's record should change.
    pub(crate) fn settle(
        &mut self,
        uid: Uid,
        result: &Result<Answer, Failure>,
        world: &World,
        now: Mono,
    ) -> bool {
        match self.step.take() {
            Some((_, CheckStep::Exists)) => self.settle_exists(uid, result),
            Some((_, CheckStep::Shutdown)) => return self.settle_shutdown(uid, result, world),
            Some((_, CheckStep::Delete)) => self.settle_deletion(uid, result, now),
            // The outcome of a recorded deletion is about the lease, not the node: see `settle_record`.
            Some((_, CheckStep::RecordDeletion | CheckStep::Obsolete)) | None => {}
        }
        false
    }

    fn settle_exists(&mut self, uid: Uid, result: &Result<Answer, Failure>) {
        let Some(check) = self.nodes.get_mut(&uid) else { return };
        match result {
            // A look-up by name that finds nothing means the same.
            Ok(Answer::Cloud(false)) | Err(Failure::Gone) => {
                check.last = CloudAnswer::Missing;
                check.missing_answers = check.missing_answers.saturating_add(1);
                if check.missing_answers >= self.settings.confirmations.get() {
                    self.next = Some((uid, CheckStep::RecordDeletion));
                }
                return;
            }
            Ok(Answer::Cloud(true)) => {
                check.last = CloudAnswer::Exists;
                self.next = Some((uid, CheckStep::Shutdown));
            }
            Ok(_) => check.last = CloudAnswer::Failed("it answered something else".to_owned()),
            Err(failure) => check.last = CloudAnswer::Failed(text(failure)),
        }
        check.missing_answers = 0;
        self.set_limited(uid, false);
    }

    fn settle_shutdown(&mut self, uid: Uid, result: &Result<Answer, Failure>, world: &World) -> bool {
        let (Some(check), Ok(Answer::Cloud(is_off))) = (self.nodes.get_mut(&uid), result) else {
            return false;
        };
        check.is_off = *is_off;
        *is_off && world.node(check.name.as_str()).is_some_and(|node| !has_shutdown_taint(node))
    }

    fn settle_deletion(&mut self, uid: Uid, result: &Result<Answer, Failure>, now: Mono) {
        match result {
            Ok(_) | Err(Failure::Unknown(_)) => self.limit.finish(now),
            Err(_) => self.limit.cancel(),
        }
        let Some(check) = self.nodes.get_mut(&uid) else { return };
        match result {
            Ok(_) => {
                check.last = CloudAnswer::Deleted;
                self.due.cancel(&(check.name.clone(), uid));
            }
            // The watch will show the next version of the record, or its deletion; until then nothing has failed.
            Err(Failure::Conflict | Failure::Gone) => {}
            Err(failure) => {
                let (name, reason) = (&check.name, text(failure));
                let message =
                    format!("Node {name} could not be deleted, though its machine does not exist: {reason}");
                self.events.push(node_event(name, uid, EventType::Warning, "DeletingNodeFailed", message));
            }
        }
    }

    fn follow_up(&mut self, uid: Uid, step: CheckStep, world: &World, now: Now, plan: &mut Plan) {
        match step {
            CheckStep::RecordDeletion => self.record_deletion(uid, world, now, plan),
            CheckStep::Delete => self.delete(uid, world, plan),
            step => self.act(uid, step, world, plan),
        }
    }

    /// Records the deletion of a node, unless the limit is reached.
    fn record_deletion(&mut self, uid: Uid, world: &World, now: Now, plan: &mut Plan) {
        // While the recorded deletions are not known, the next answer brings the node here again.
        let Some(node) = self.node(uid, world).filter(|_| self.record.is_known()) else { return };
        if self.limit.is_reached(now.mono) {
            if self.set_limited(uid, true) {
                let (name, why) = (&node.meta.name, self.why_limited());
                let message = format!("Node {name} is not deleted, though its machine does not exist: {why}");
                plan.emit(event(node, EventType::Warning, "DeletionHeldBack", message));
            }
            return;
        }
        self.set_limited(uid, false);
        let (subject, action) = self.record.write(self.limit.counted(now.mono), now);
        self.limit.begin();
        plan.act(
            ControllerName::CloudNodes,
            subject,
            action,
            "a node whose machine does not exist is about to be deleted",
            [],
        );
        self.step = Some((uid, CheckStep::RecordDeletion));
    }

    fn delete(&mut self, uid: Uid, world: &World, plan: &mut Plan) {
        // If the node was Ready meanwhile, earlier answers do not count.
        let is_confirmed = |check: &MachineCheck| check.missing_answers >= self.settings.confirmations.get();
        let node = self.node(uid, world).filter(|_| self.nodes.get(&uid).is_some_and(is_confirmed));
        let Some(node) = node else { return self.limit.cancel() };
        let message =
            format!("Deleting node {} because its machine does not exist in the cloud", node.meta.name);
        plan.emit(event(node, EventType::Normal, "DeletingNode", message));
        self.act(uid, CheckStep::Delete, world, plan);
    }

    fn act(&mut self, uid: Uid, step: CheckStep, world: &World, plan: &mut Plan) {
        let Some(node) = self.node(uid, world) else { return };
        let ask = |question| Action::AskCloud { question, provider_id: node.spec.provider_id.clone() };
        let (action, why) = match step {
            CheckStep::Exists => (ask(CloudQuestion::Exists), "the node is not Ready"),
            CheckStep::Shutdown => {
                (ask(CloudQuestion::Shutdown), "the node is not Ready but its machine exists")
            }
            CheckStep::Delete => (
                Action::DeleteNode { version: node.meta.resource_version },
                "its machine does not exist in the cloud",
            ),
            CheckStep::RecordDeletion | CheckStep::Obsolete => return,
        };
        let answers = self.nodes.get(&uid).map_or(0, |check| check.missing_answers);
        let cause = (step == CheckStep::Delete)
            .then(|| causes::machine_gone(answers, self.settings.confirmations.get()));
        plan.act(ControllerName::CloudNodes, Subject::of_node(node), action, why, cause);
        self.step = Some((uid, step));
    }

    /// The record of a node that is still not Ready.
    fn node<'w>(&self, uid: Uid, world: &'w World) -> Option<&'w Node> {
        let node = world.node(self.nodes.get(&uid)?.name.as_str())?;
        (node.meta.uid == Some(uid) && !node.is_ready()).then_some(&**node)
    }

    /// Returns whether that changed anything.
    fn set_limited(&mut self, uid: Uid, is_limited: bool) -> bool {
        let Some(check) = self.nodes.get_mut(&uid).filter(|it| it.is_limited != is_limited) else {
            return false;
        };
        check.is_limited = is_limited;
        if is_limited {
            self.limited += 1;
        } else {
            self.limited -= 1;
        }
        true
    }

    fn ask_again_later(&mut self, uid: Uid, now: Mono) {
        let Some(check) = self.nodes.get(&uid) else { return };
        self.due.schedule((check.name.clone(), uid), now + self.settings.period);
    }

    /// When the cloud is asked about the node again.
    pub(crate) fn due_at(&self, name: &Name, uid: Uid) -> Option<Mono> {
        self.due.due_at(&(name.clone(), uid))
    }

    /// Why nodes whose machines are gone are not deleted now.
    pub(crate) fn why_limited(&self) -> String {
        let Settings { delete_limit, delete_period, .. } = self.settings;
        match delete_limit {
            0 => "none may be deleted (--cloud-delete-limit is 0)".to_owned(),
            limit => {
                let period = SignedDuration::try_from(delete_period).unwrap_or(SignedDuration::MAX);
                format!(
                    "no more than {limit} may be deleted within {period:#} (--cloud-delete-limit, --cloud-delete-period)"
                )
            }
        }
    }
}

pub(crate) fn text(failure: &Failure) -> String {
    match failure {
        Failure::Conflict => "the record has changed".to_owned(),
        Failure::Gone => "there is no such record".to_owned(),
        Failure::Budget { message, .. } => message.clone(),
        Failure::Refused(reason) | Failure::Later(reason) | Failure::Unknown(reason) => reason.clone(),
    }
}

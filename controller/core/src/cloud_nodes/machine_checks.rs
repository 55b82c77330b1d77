//! Nodes that are not Ready: is there still a machine, and is it switched off?
//!
//! They are asked about one after the other, each once a period. One answer that a machine does not exist is not
//! believed, and no more than a few nodes are deleted in a row: a cloud that lies, or is asked with the wrong
//! credentials, must not empty the fleet.

use std::collections::HashMap;

use jiff::SignedDuration;
use muster_proto::event::{Event, EventType};
use muster_proto::name::{Name, Uid};
use muster_proto::node::Node;
use muster_proto::time::Mono;

use super::deletion_limit::Brake;
use super::deletion_record::Memory;
use super::{NodeKey, Settings, is_marked_off};
use crate::deadlines::Deadlines;
use crate::plan::{
    Action, Answer, CloudQuestion, ControllerName, Failure, Plan, Subject, event, node_event, uid,
};
use crate::world::World;
use muster_proto::time::Now;

#[derive(Clone, Debug)]
pub(crate) struct Suspects {
    pub(crate) settings: Settings,
    pub(crate) brake: Brake,
    pub(crate) memory: Memory,
    pub(crate) nodes: HashMap<Uid, Suspect>,
    /// How many suspects are held back.
    pub(crate) held_back: usize,
    /// When each is asked about again. Not which action is in flight: there is one for all nodes, `step`.
    due: Deadlines<NodeKey>,
    /// What is under way.
    step: Option<(Uid, Step)>,
    /// What the last answer makes us do next.
    next: Option<(Uid, Step)>,
    events: Vec<Event>,
}

#[derive(Clone, Debug)]
pub(crate) struct Suspect {
    name: Name,
    pub(crate) last: Verdict,
    /// Answers in a row that there is no machine.
    pub(crate) denials: u32,
    /// Whether the cloud last said that the machine is switched off.
    pub(crate) is_off: bool,
    /// Whether it would be deleted but for the brake.
    pub(crate) is_held_back: bool,
}

/// What the cloud last said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    None,
    Exists,
    Denied,
    Failed(String),
    /// The node was deleted for it; its record is about to go.
    Deleted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Exists,
    Shutdown,
    /// Write down that it is about to be deleted.
    TraceEvent,
    /// It is written down: the brake counts it until it is known not to have happened.
    Delete,
    /// A question whose answer no longer matters.
    Moot,
}

impl Suspects {
    pub(crate) fn new(settings: Settings) -> Suspects {
        Suspects {
            settings,
            brake: Brake::new(settings.delete_limit, settings.delete_period),
            memory: Memory::new(&settings),
            nodes: HashMap::new(),
            held_back: 0,
            due: Deadlines::default(),
            step: None,
            next: None,
            events: Vec::new(),
        }
    }

    /// The node that a proposal of ours is under way for.
    pub(crate) fn busy_with(&self) -> Option<Uid> {
        self.step.map(|(uid, _)| uid)
    }

    pub(crate) fn is_off(&self, uid: Uid) -> bool {
        self.nodes.get(&uid).is_some_and(|suspect| suspect.is_off)
    }

    /// A node that is not being deleted.
    pub(crate) fn see(&mut self, node: &Node, now: Mono) {
        let uid = uid(&node.meta);
        if node.is_ready() {
            self.forget(uid);
        } else if !self.nodes.contains_key(&uid) {
            let name = node.meta.name.clone();
            self.due.schedule((name.clone(), uid), now);
            let suspect =
                Suspect { name, last: Verdict::None, denials: 0, is_off: false, is_held_back: false };
            self.nodes.insert(uid, suspect);
        }
    }

    /// A node that is Ready, or leaves: the cloud's answers about it no longer matter.
    pub(crate) fn forget(&mut self, uid: Uid) {
        if let Some(suspect) = self.nodes.remove(&uid) {
            self.due.forget(&(suspect.name, uid));
            self.held_back -= usize::from(suspect.is_held_back);
        }
        self.next.take_if(|(next, step)| *next == uid && *step != Step::Delete);
        if let Some((busy, step @ (Step::Exists | Step::Shutdown))) = &mut self.step
            && *busy == uid
        {
            *step = Step::Moot;
        }
    }

    /// Asks the store what it remembers of the brake, if that is not known.
    pub(crate) fn recall(&mut self, now: Mono, plan: &mut Plan) {
        self.memory.recall(now, plan);
    }

    /// What the store remembers, or whether it has taken note.
    pub(crate) fn settle_memory(&mut self, result: &Result<Answer, Failure>, now: Now) {
        if self.memory.is_reading() {
            if let Some(until) = self.memory.read(result, now) {
                self.brake.remember(until);
            }
        } else if let Some((uid, _)) = self.step.take_if(|(_, step)| *step == Step::TraceEvent) {
            if self.memory.wrote(result, now) {
                self.next = Some((uid, Step::Delete));
            } else {
                // The cloud is asked again, and by then we know more.
                self.brake.cancel();
            }
        }
    }

    pub(crate) fn decide(&mut self, busy: Option<Uid>, world: &World, now: Now, plan: &mut Plan) {
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
        let due = self.due.iter().find(|(_, (_, uid))| Some(*uid) != busy);
        let Some((at, &(_, uid))) = due else { return };
        if at > now.mono {
            return plan.wake_by(at);
        }
        self.ask_again_later(uid, now.mono);
        self.act(uid, Step::Exists, world, plan);
    }

    /// Whether the node's record should change for it.
    pub(crate) fn settle(
        &mut self,
        uid: Uid,
        result: &Result<Answer, Failure>,
        world: &World,
        now: Mono,
    ) -> bool {
        match self.step.take() {
            Some((_, Step::Exists)) => self.settle_exists(uid, result),
            Some((_, Step::Shutdown)) => return self.settle_shutdown(uid, result, world),
            Some((_, Step::Delete)) => self.settle_deletion(uid, result, now),
            // Notes are settled apart from what is said of nodes.
            Some((_, Step::TraceEvent | Step::Moot)) | None => {}
        }
        false
    }

    fn settle_exists(&mut self, uid: Uid, result: &Result<Answer, Failure>) {
        let Some(suspect) = self.nodes.get_mut(&uid) else { return };
        match result {
            // A look-up by name that finds nothing says the same.
            Ok(Answer::Cloud(false)) | Err(Failure::Gone) => {
                suspect.last = Verdict::Denied;
                suspect.denials = suspect.denials.saturating_add(1);
                if suspect.denials >= self.settings.confirmations.get() {
                    self.next = Some((uid, Step::TraceEvent));
                }
                return;
            }
            Ok(Answer::Cloud(true)) => {
                suspect.last = Verdict::Exists;
                self.next = Some((uid, Step::Shutdown));
            }
            Ok(_) => suspect.last = Verdict::Failed("it answered something else".to_owned()),
            Err(failure) => suspect.last = Verdict::Failed(text(failure)),
        }
        suspect.denials = 0;
        self.hold_back(uid, false);
    }

    fn settle_shutdown(&mut self, uid: Uid, result: &Result<Answer, Failure>, world: &World) -> bool {
        let (Some(suspect), Ok(Answer::Cloud(is_off))) = (self.nodes.get_mut(&uid), result) else {
            return false;
        };
        suspect.is_off = *is_off;
        *is_off && world.node(suspect.name.as_str()).is_some_and(|node| !is_marked_off(node))
    }

    fn settle_deletion(&mut self, uid: Uid, result: &Result<Answer, Failure>, now: Mono) {
        match result {
            Ok(_) | Err(Failure::Unknown(_)) => self.brake.finish(now),
            Err(_) => self.brake.cancel(),
        }
        let Some(suspect) = self.nodes.get_mut(&uid) else { return };
        match result {
            Ok(_) => {
                suspect.last = Verdict::Deleted;
                self.due.cancel(&(suspect.name.clone(), uid));
            }
            // Its next version, or its end, is on its way; until then nothing has failed.
            Err(Failure::Conflict | Failure::Gone) => {}
            Err(failure) => {
                let (name, reason) = (&suspect.name, text(failure));
                let message =
                    format!("Node {name} could not be deleted, though its machine does not exist: {reason}");
                self.events.push(node_event(name, uid, EventType::Warning, "DeletingNodeFailed", message));
            }
        }
    }

    fn follow_up(&mut self, uid: Uid, step: Step, world: &World, now: Now, plan: &mut Plan) {
        match step {
            Step::TraceEvent => self.condemn(uid, world, now, plan),
            Step::Delete => self.delete(uid, world, plan),
            step => self.act(uid, step, world, plan),
        }
    }

    /// Has the deletion of a node written down, unless the brake is on.
    fn condemn(&mut self, uid: Uid, world: &World, now: Now, plan: &mut Plan) {
        // If the brake is not known the node comes up again with the next answer.
        let Some(node) = self.node(uid, world).filter(|_| self.memory.is_known()) else { return };
        if self.brake.is_on(now.mono) {
            if self.hold_back(uid, true) {
                let (name, why) = (&node.meta.name, self.why_held_back());
                let message = format!("Node {name} is not deleted, though its machine does not exist: {why}");
                plan.emit(event(node, EventType::Warning, "DeletionHeldBack", message));
            }
            return;
        }
        self.hold_back(uid, false);
        let (subject, action) = self.memory.note(self.brake.counting(now.mono), now);
        self.brake.begin();
        plan.act(
            ControllerName::CloudNodes,
            subject,
            action,
            "a node is about to be deleted on the cloud's word",
        );
        self.step = Some((uid, Step::TraceEvent));
    }

    fn delete(&mut self, uid: Uid, world: &World, plan: &mut Plan) {
        // If it was Ready meanwhile, what the cloud said before does not count.
        let is_denied = |suspect: &Suspect| suspect.denials >= self.settings.confirmations.get();
        let node = self.node(uid, world).filter(|_| self.nodes.get(&uid).is_some_and(is_denied));
        let Some(node) = node else { return self.brake.cancel() };
        let message =
            format!("Deleting node {} because its machine does not exist in the cloud", node.meta.name);
        plan.emit(event(node, EventType::Normal, "DeletingNode", message));
        self.act(uid, Step::Delete, world, plan);
    }

    fn act(&mut self, uid: Uid, step: Step, world: &World, plan: &mut Plan) {
        let Some(node) = self.node(uid, world) else { return };
        let ask = |question| Action::AskCloud { question, provider_id: node.spec.provider_id.clone() };
        let (action, why) = match step {
            Step::Exists => (ask(CloudQuestion::Exists), "the node is not Ready"),
            Step::Shutdown => (ask(CloudQuestion::Shutdown), "the node is not Ready but its machine exists"),
            Step::Delete => (
                Action::DeleteNode { version: node.meta.resource_version },
                "its machine does not exist in the cloud",
            ),
            Step::TraceEvent | Step::Moot => return,
        };
        plan.act(ControllerName::CloudNodes, Subject::of_node(node), action, why);
        self.step = Some((uid, step));
    }

    /// The record of a suspect.
    fn node<'w>(&self, uid: Uid, world: &'w World) -> Option<&'w Node> {
        let node = world.node(self.nodes.get(&uid)?.name.as_str())?;
        (node.meta.uid == Some(uid) && !node.is_ready()).then_some(&**node)
    }

    /// Says whether that is news.
    fn hold_back(&mut self, uid: Uid, is_held_back: bool) -> bool {
        let Some(suspect) = self.nodes.get_mut(&uid).filter(|it| it.is_held_back != is_held_back) else {
            return false;
        };
        suspect.is_held_back = is_held_back;
        if is_held_back {
            self.held_back += 1;
        } else {
            self.held_back -= 1;
        }
        true
    }

    fn ask_again_later(&mut self, uid: Uid, now: Mono) {
        let Some(suspect) = self.nodes.get(&uid) else { return };
        self.due.schedule((suspect.name.clone(), uid), now + self.settings.period);
    }

    /// When the cloud is asked about the node again.
    pub(crate) fn due_at(&self, name: &Name, uid: Uid) -> Option<Mono> {
        self.due.due_at(&(name.clone(), uid))
    }

    /// Why nodes whose machines are gone are not deleted now.
    pub(crate) fn why_held_back(&self) -> String {
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

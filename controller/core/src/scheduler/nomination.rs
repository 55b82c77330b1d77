//! Makes space for pods that fit no node: other pods are displaced, and what they leave is kept for the pod.
//!
//! A pod for which others are displaced is nominated: it is out of its class, and its request counts as taken for pods of
//! the same or lower priority. It is looked at when something changes on its node, or elsewhere in its favour: it is bound
//! as soon as it fits a node, waits while pods of lower priority are leaving its node, and is queued again when none is
//! left to wait for. So it displaces nobody else while its victims are still terminating.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use muster_proto::condition::{ConditionStatus, types};
use muster_proto::event::EventType;
use muster_proto::key::Key;
use muster_proto::name::{Name, Uid};
use muster_proto::pod::Pod;
use muster_proto::time::{Mono, Now};

use super::decide::unschedulable;
use super::fit_error::FitError;
use super::node_cache::NominatedPod;
use super::pending_pods::{Nomination, PendingPod, PendingPods, PendingState};
use super::pod_requirements::PodRequirements;
use super::preemption::{Candidate, is_displaceable};
use super::queue::{ClassId, QueuedPod};
use super::victims::{PREEMPTED_REASON, Victim};
use super::{FAILED_SCHEDULING, Scheduler};
use crate::decision::causes;
use crate::plan::{Action, Answer, ControllerName, Failure, Plan, Subject, event, uid};
use crate::world::World;

/// How many pods a message lists.
const MAX_LISTED: usize = 5;

/// The nominated pods.
#[derive(Clone, Debug, Default)]
pub(super) struct NominatedPods {
    /// Those with equal requirements are interchangeable.
    by_requirements: HashMap<Arc<PodRequirements>, BTreeSet<QueuedPod>>,
    /// Those to be looked at, the highest priority first.
    due: BTreeSet<(Reverse<i32>, QueuedPod)>,
}

impl NominatedPods {
    /// The pod to be looked at first.
    pub(super) fn next(&self) -> Option<&(Reverse<i32>, QueuedPod)> {
        self.due.first()
    }

    fn add(&mut self, requirements: &Arc<PodRequirements>, queued: QueuedPod) {
        self.by_requirements.entry(Arc::clone(requirements)).or_default().insert(queued);
    }

    fn remove(&mut self, requirements: &Arc<PodRequirements>, queued: &QueuedPod) {
        self.due.remove(&(Reverse(requirements.priority()), queued.clone()));
        if let Some(pods) = self.by_requirements.get_mut(requirements) {
            pods.remove(queued);
            if pods.is_empty() {
                self.by_requirements.remove(requirements);
            }
        }
    }

    /// The first pod with these requirements is looked at.
    fn wake_next(&mut self, requirements: &Arc<PodRequirements>) {
        if let Some(first) = self.by_requirements.get(requirements).and_then(BTreeSet::first) {
            self.due.insert((Reverse(requirements.priority()), first.clone()));
        }
    }

    /// The first pod of each kind of requirements for which that holds is looked at.
    pub(super) fn wake(&mut self, helps: impl Fn(&PodRequirements) -> bool) {
        for (requirements, pods) in &self.by_requirements {
            if let Some(first) = pods.first()
                && helps(requirements)
            {
                self.due.insert((Reverse(requirements.priority()), first.clone()));
            }
        }
    }
}

impl Scheduler {
    /// Displaces the chosen pods and keeps their space for the pod.
    pub(super) fn nominate(
        &mut self,
        class: ClassId,
        queued: &QueuedPod,
        candidate: Candidate,
        why: &FitError,
        (world, now): (&World, Now),
        plan: &mut Plan,
    ) {
        let Candidate { node, victims, .. } = candidate;
        let key = &queued.key;
        self.queue.remove(class, queued);
        let pod = self.pending_pods.pod(key);
        let (by_uid, requirements) = (pod.uid, Arc::clone(&pod.requirements));
        let by_priority = requirements.priority();
        // What they wait for goes to a more important pod now.
        let outranked: Vec<Key> = self
            .cache
            .nominated_on(&node)
            .iter()
            .filter(|held| held.requirements.priority() < by_priority)
            .map(|held| held.key.clone())
            .collect();
        for key in outranked {
            self.withdraw(&key);
        }
        for victim in &victims {
            let is_leaving =
                victim.meta.is_deleting() || self.is_victim(&Key::of(&**victim), uid(&victim.meta));
            if !is_leaving {
                let (node, by) = (node.clone(), key.clone());
                let displaced = Victim { uid: uid(&victim.meta), node, by, by_uid, by_priority };
                let key = Key::of(&**victim);
                let is_unanswered = self.unanswered.contains_key(&key);
                self.victims.displace(&key, displaced, is_unanswered, now.mono, plan);
            }
        }
        let victims: Vec<Key> = victims.iter().map(|victim| Key::of(&**victim)).collect();
        let message = format!("{why} It displaces {} on node {node}.", listed(&victims, key));
        let look_at = now.mono + self.settings.retry_interval;
        let nomination = Nomination { node, victims, message, is_writing: false, look_at };
        self.keep_space(key, &requirements, nomination);
        self.write_nomination(key, world, now, plan);
    }

    /// Continues the nomination of a pod that was nominated by a scheduler before this one. Returns whether there is one.
    pub(super) fn resume_nomination(&mut self, pod: &Pod, world: &World, now: Now) -> bool {
        let Some(node) = pod.status.nominated_node_name.clone().filter(|node| self.cache.has(node)) else {
            return false;
        };
        let key = Key::of(pod);
        let requirements = Arc::new(PodRequirements::of(&pod.spec));
        let lower = self.leaving(&node, requirements.priority(), world);
        let is_displaced = |pod: &&Arc<Pod>| {
            pod.condition(types::DISRUPTION_TARGET).is_some_and(|held| held.reason == PREEMPTED_REASON)
        };
        let victims: Vec<Key> = lower.filter(is_displaced).map(|pod| Key::of(&**pod)).collect();
        let said = pod.condition(types::POD_SCHEDULED).filter(|held| held.status == ConditionStatus::False);
        let message = said.map_or_else(
            || format!("It displaces {} on node {node}.", listed(&victims, &key)),
            |held| held.message.clone(),
        );
        let look_at = now.mono + self.settings.retry_interval;
        let nomination = Nomination { node, victims, message, is_writing: false, look_at };
        let state = PendingState::Nominated(nomination.clone());
        let pending = PendingPod {
            uid: uid(&pod.meta),
            since: now.mono,
            requirements: Arc::clone(&requirements),
            state,
        };
        self.pending_pods.insert(key.clone(), pending);
        self.keep_space(&key, &requirements, nomination);
        self.look_later(&key);
        true
    }

    pub(super) fn keep_space(
        &mut self,
        key: &Key,
        requirements: &Arc<PodRequirements>,
        nomination: Nomination,
    ) {
        let kept = NominatedPod { key: key.clone(), requirements: Arc::clone(requirements) };
        self.cache.nominate(&nomination.node, kept);
        self.nominated.add(requirements, self.pending_pods.pod(key).queued(key));
        self.pending_pods.set_state(key, PendingState::Nominated(nomination));
    }

    /// Ends the nomination of a pod. Its space is free for others; the caller sets the state that follows.
    pub(super) fn end_nomination(&mut self, key: &Key) {
        let pod = self.pending_pods.pod(key);
        let Some(node) = pod.state.nomination().map(|nomination| nomination.node.clone()) else { return };
        self.nominated.remove(&pod.requirements, &pod.queued(key));
        self.cache.end_nomination(&node, key);
    }

    /// Ends the nomination of a pod and queues the pod again, at once or when its status is written.
    fn withdraw(&mut self, key: &Key) {
        let Some(nomination) = self.pending_pods.pod(key).state.nomination().cloned() else { return };
        self.end_nomination(key);
        if nomination.is_writing {
            self.pending_pods.set_state(key, PendingState::Withdrawn);
        } else {
            self.enqueue(key);
        }
        self.wake_for(&nomination.node);
    }

    /// The pod is looked at in the next decision.
    pub(super) fn look_later(&mut self, key: &Key) {
        let pod = self.pending_pods.pod(key);
        if pod.state.nomination().is_some() {
            self.nominated.due.insert((Reverse(pod.requirements.priority()), pod.queued(key)));
        }
    }

    /// The pods that are nominated on this node are looked at in the next decision.
    pub(super) fn look_at_nominated_on(&mut self, node: &Name) {
        let keys: Vec<Key> = self.cache.nominated_on(node).iter().map(|pod| pod.key.clone()).collect();
        keys.iter().for_each(|key| self.look_later(key));
    }

    /// Binds a nominated pod if it fits a node, and queues it again if nothing leaves its node any more.
    pub(super) fn look_at_nominated(
        &mut self,
        queued: &QueuedPod,
        (world, now): (&World, Now),
        examined: &mut usize,
        plan: &mut Plan,
    ) {
        let key = &queued.key;
        let pod = self.pending_pods.pod(key);
        let requirements = Arc::clone(&pod.requirements);
        self.nominated.due.remove(&(Reverse(requirements.priority()), queued.clone()));
        let Some(nomination) = pod.state.nomination() else { return };
        if nomination.is_writing {
            // The outcome of the write brings the pod here again.
            return;
        }
        let node = nomination.node.clone();
        let is_free = self.cache.fits_beside(&requirements, &node, Some(key));
        let chosen = if is_free {
            Some(node.clone())
        } else {
            self.rankings.choose(&self.cache, &requirements, examined).ok()
        };
        if let Some(chosen) = chosen {
            self.end_nomination(key);
            self.cache.allocate(&chosen, &requirements.request);
            self.bind(key.clone(), chosen.clone(), None, plan);
            if chosen != node {
                self.wake_for(&node);
            }
            // What helped this pod may help the next one, too.
            self.nominated.wake_next(&requirements);
            return;
        }
        let is_open = self.cache.is_open_to(&requirements, &node);
        if is_open && self.leaving(&node, requirements.priority(), world).next().is_some() {
            self.write_nomination(key, world, now, plan);
        } else {
            self.withdraw(key);
        }
    }

    /// The pods of lower priority that are leaving the node.
    fn leaving<'a>(
        &'a self,
        node: &Name,
        priority: i32,
        world: &'a World,
    ) -> impl Iterator<Item = &'a Arc<Pod>> {
        world.pods_on(node.as_str()).filter(move |pod| {
            is_displaceable(pod)
                && pod.spec.priority() < priority
                && (pod.meta.is_deleting() || self.victims.get(&Key::of(&***pod), uid(&pod.meta)).is_some())
        })
    }

    /// Writes the nomination into the pod's record, if the record does not say so.
    fn write_nomination(&mut self, key: &Key, world: &World, now: Now, plan: &mut Plan) {
        let pending = self.pending_pods.pod(key);
        let Some(nomination) = pending.state.nomination() else { return };
        let mut next = Nomination { look_at: now.mono + self.settings.retry_interval, ..nomination.clone() };
        let record = world.pod(key).filter(|pod| uid(&pod.meta) == pending.uid);
        if let Some(marked) = record.and_then(|pod| unschedulable(pod, &next.message, Some(&next.node), now))
        {
            plan.emit(event(&marked, EventType::Warning, FAILED_SCHEDULING, next.message.as_str()));
            let subject = Subject::of_pod(&marked);
            let action = Action::UpdatePodStatus(Box::new(marked));
            let cause = causes::nominated(&next.node, &next.message);
            plan.act(ControllerName::Scheduler, subject, action, "others are displaced for it", [cause]);
            next.is_writing = true;
        }
        self.pending_pods.set_state(key, PendingState::Nominated(next));
    }

    /// The outcome of writing a nomination.
    pub(super) fn settle_nomination(
        &mut self,
        key: &Key,
        nomination: Nomination,
        result: &Result<Answer, Failure>,
        now: Now,
    ) {
        if !nomination.is_writing {
            return;
        }
        let look_at = match result {
            Ok(_) => {
                self.pending_pods.succeed(key);
                now.mono + self.settings.retry_interval
            }
            Err(_) => self.pending_pods.fail(key, now.mono),
        };
        let nomination = Nomination { is_writing: false, look_at, ..nomination };
        self.pending_pods.set_state(key, PendingState::Nominated(nomination));
        if result.is_ok() {
            self.look_later(key);
        }
    }

    /// The outcome of a request to delete a pod that is displaced. Its record may come before or after this.
    pub(super) fn settle_victim(
        &mut self,
        key: &Key,
        victim: &Victim,
        result: &Result<Answer, Failure>,
        now: Now,
    ) {
        match result {
            Ok(Answer::Pod(pod)) => {
                let message = format!("Preempted by pod {} on node {}", victim.by, victim.node);
                self.events.push(event(&**pod, EventType::Normal, "Preempted", message));
                self.victims.succeed(key);
            }
            Ok(_) => self.victims.succeed(key),
            Err(Failure::Gone) => {
                self.victims.forget(key);
                self.look_at_nominated_on(&victim.node);
            }
            Err(_) => self.victims.fail(key, now.mono),
        }
    }

    /// Requests the deletions again that failed and are still needed.
    pub(super) fn retry_victims(&mut self, now: Mono, plan: &mut Plan) {
        let needed = |victim: &Victim| is_needed(&self.pending_pods, victim);
        self.victims.retry(needed, |key| self.unanswered.contains_key(key), now, plan);
    }

    /// Whether the pod is still to be displaced: the pod that needs its space is still nominated there.
    pub fn is_victim(&self, key: &Key, uid: Uid) -> bool {
        self.victims.get(key, uid).is_some_and(|victim| is_needed(&self.pending_pods, victim))
    }
}

/// Whether the pod that needs the space is still nominated there.
fn is_needed(pending_pods: &PendingPods, victim: &Victim) -> bool {
    let by = pending_pods.get(&victim.by, victim.by_uid);
    let nomination = by.and_then(|pod| pod.state.nomination());
    nomination.is_some_and(|nomination| nomination.node == victim.node)
}

/// Pods as a message lists them; those of the pod's own namespace by name only.
pub(crate) fn listed(pods: &[Key], own: &Key) -> String {
    let name = |key: &Key| {
        if key.namespace == own.namespace { key.name.to_string() } else { key.to_string() }
    };
    let mut names: Vec<String> = pods.iter().take(MAX_LISTED).map(name).collect();
    match pods.len() {
        0 => names.push("pods of lower priority".to_owned()),
        all if all > MAX_LISTED => names.push(format!("{} more", all - MAX_LISTED)),
        _ => {}
    }
    names.join(", ")
}

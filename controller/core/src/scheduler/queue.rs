//! Which pod is tried next, and which wait for what.
//!
//! Pods with equal requirements form one class. When the first pod of a class fits no node, none of the class does, so
//! the whole class waits: until a node changes in its favour, or at the latest for a fixed time. Classes are tried in
//! the order of their first pods: highest priority, then longest wait, then name.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use muster_proto::backoff::Backoff;
use muster_proto::key::Key;
use muster_proto::time::Mono;

use super::fit_error::FitError;
use super::pod_requirements::PodRequirements;
use crate::deadlines::Deadlines;

pub(crate) type ClassId = u64;

/// A pod in its class, ordered by how long it has waited.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueuedPod {
    pub(crate) since: Mono,
    pub(crate) key: Key,
}

/// The classes of pods that need a node.
#[derive(Clone, Debug)]
pub(crate) struct SchedulingQueue {
    /// How long a class waits after a failed attempt if no node changes in its favour.
    retry_interval: Duration,
    classes: HashMap<ClassId, PodClass>,
    by_requirements: HashMap<Arc<PodRequirements>, ClassId>,
    next_id: ClassId,
    /// The first pod of each class that may be tried. This order is by priority and not by deadline, so it is kept
    /// apart from `retries`.
    ready: BTreeSet<(Reverse<i32>, QueuedPod, ClassId)>,
    /// When the other classes are tried again. A node that changes in favour of a class shortens its wait to the
    /// back-off.
    retries: Deadlines<ClassId>,
    /// Classes that wait and have pods whose records do not say why.
    unreported: BTreeSet<ClassId>,
}

/// Pods with equal requirements.
#[derive(Clone, Debug)]
struct PodClass {
    requirements: Arc<PodRequirements>,
    pods: BTreeSet<QueuedPod>,
    /// How many pods are out of `pods` while their status is written; they come back.
    being_reported: usize,
    /// The last attempt; `None` if the class is to be tried.
    failed: Option<FailedAttempt>,
    /// The reason that pods outside `unreported` have in their records.
    reported: String,
    unreported: BTreeSet<QueuedPod>,
    /// The pod of this class that is in `ready`.
    first: Option<QueuedPod>,
}

/// Why and since when a class waits.
#[derive(Clone, Debug)]
pub(crate) struct FailedAttempt {
    pub(crate) fit_error: FitError,
    pub(crate) at: Mono,
    /// Whether a node has changed in favour of the class since then.
    is_woken: bool,
}

impl SchedulingQueue {
    pub(crate) fn new(backoff: Backoff, retry_interval: Duration) -> SchedulingQueue {
        SchedulingQueue {
            retry_interval,
            classes: HashMap::new(),
            by_requirements: HashMap::new(),
            next_id: 0,
            ready: BTreeSet::new(),
            retries: Deadlines::new(backoff),
            unreported: BTreeSet::new(),
        }
    }

    /// Adds a pod to the class with its requirements; if that class waits, the pod waits too.
    pub(crate) fn add(&mut self, requirements: &Arc<PodRequirements>, queued: QueuedPod) -> ClassId {
        let id = self.class_for(requirements);
        let class = self.class(id);
        class.unreported.insert(queued.clone());
        class.pods.insert(queued);
        // No attempt was made since a node changed, and this pod never failed, so it needs no back-off.
        if class.failed.take_if(|failed| failed.is_woken).is_some() {
            self.retries.cancel(&id);
        }
        self.refresh(id);
        id
    }

    fn class_for(&mut self, requirements: &Arc<PodRequirements>) -> ClassId {
        if let Some(&id) = self.by_requirements.get(requirements) {
            return id;
        }
        let id = self.next_id;
        self.next_id += 1;
        let class = PodClass {
            requirements: Arc::clone(requirements),
            pods: BTreeSet::new(),
            being_reported: 0,
            failed: None,
            reported: String::new(),
            unreported: BTreeSet::new(),
            first: None,
        };
        self.classes.insert(id, class);
        self.by_requirements.insert(Arc::clone(requirements), id);
        id
    }

    /// Removes a pod from its class, also while its status is being written.
    pub(crate) fn remove(&mut self, id: ClassId, queued: &QueuedPod) {
        let class = self.class(id);
        if !class.remove(queued) {
            class.being_reported -= 1;
        }
        self.refresh(id);
    }

    /// Takes a pod out of its class while its status is written.
    pub(crate) fn begin_report(&mut self, id: ClassId, queued: &QueuedPod) {
        let class = self.class(id);
        if class.remove(queued) {
            class.being_reported += 1;
        }
        self.refresh(id);
    }

    /// Puts a pod back whose status was being written.
    pub(crate) fn end_report(&mut self, id: ClassId, queued: QueuedPod) {
        let class = self.class(id);
        class.being_reported -= 1;
        class.pods.insert(queued);
        self.refresh(id);
    }

    /// The pod to try next, and its requirements.
    pub(crate) fn next(&self) -> Option<(ClassId, QueuedPod, Arc<PodRequirements>)> {
        let (_, queued, id) = self.ready.first()?;
        Some((*id, queued.clone(), Arc::clone(&self.classes[id].requirements)))
    }

    /// A node was found for the pod: the pod leaves its class, whose failures no longer count.
    pub(crate) fn assigned(&mut self, id: ClassId, queued: &QueuedPod) {
        self.retries.succeed(&id);
        self.remove(id, queued);
    }

    /// No node was found: the class waits.
    pub(crate) fn failed(&mut self, id: ClassId, fit_error: FitError, now: Mono) {
        self.retries.fail(&id, now);
        self.retries.schedule(id, now + self.retry_interval);
        let class = self.class(id);
        let message = fit_error.to_string();
        if message != class.reported {
            class.reported = message;
            class.unreported.clone_from(&class.pods);
        }
        class.failed = Some(FailedAttempt { fit_error, at: now, is_woken: false });
        self.refresh(id);
    }

    /// Tries a class again that has just failed as soon as its back-off has passed.
    pub(crate) fn retry_soon(&mut self, id: ClassId) {
        if let Some(failed) = &mut self.class(id).failed {
            failed.is_woken = true;
        }
        if let Some(at) = self.retries.retry_at(&id) {
            self.retries.schedule(id, at);
        }
    }

    /// A node has changed: the waiting classes that it `helps` are tried as soon as their back-off has passed.
    pub(crate) fn wake(&mut self, helps: impl Fn(&PodRequirements) -> bool) {
        let is_woken = |class: &PodClass| class.failed.as_ref().is_some_and(|failed| failed.is_woken);
        let helped = self.retries.iter().filter(|(_, id)| {
            let class = &self.classes[id];
            !is_woken(class) && helps(&class.requirements)
        });
        let ids: Vec<ClassId> = helped.map(|(_, id)| *id).collect();
        ids.into_iter().for_each(|id| self.retry_soon(id));
    }

    /// Makes the classes ready whose wait is over.
    pub(crate) fn advance(&mut self, now: Mono) {
        while let Some(id) = self.retries.pop(now) {
            self.class(id).failed = None;
            self.refresh(id);
        }
    }

    /// A waiting pod whose record does not say why it waits, and the reason.
    pub(crate) fn next_unreported(&self) -> Option<(ClassId, QueuedPod, &str)> {
        let id = self.unreported.first()?;
        let class = &self.classes[id];
        Some((*id, class.unreported.first()?.clone(), &class.reported))
    }

    pub(crate) fn set_reported(&mut self, id: ClassId, queued: &QueuedPod) {
        self.class(id).unreported.remove(queued);
        self.refresh(id);
    }

    /// The pod's record may no longer say why the pod waits.
    pub(crate) fn set_unreported(&mut self, id: ClassId, queued: QueuedPod) {
        self.class(id).unreported.insert(queued);
        self.refresh(id);
    }

    /// When there is something to do: now if a pod is to be tried or its record to be written.
    pub(crate) fn next_at(&self, now: Mono) -> Option<Mono> {
        let is_due = !self.ready.is_empty() || !self.unreported.is_empty();
        if is_due { Some(now) } else { self.retries.next() }
    }

    /// Why a class waits; `None` if it is about to be tried.
    pub(crate) fn failure(&self, id: ClassId) -> Option<&FailedAttempt> {
        self.classes.get(&id).and_then(|class| class.failed.as_ref())
    }

    /// When a class that waits is tried again.
    pub(crate) fn retry_at(&self, id: ClassId) -> Option<Mono> {
        self.retries.due_at(&id)
    }

    fn class(&mut self, id: ClassId) -> &mut PodClass {
        self.classes.get_mut(&id).expect("a class is kept as long as a pod belongs to it")
    }

    /// Brings `ready` and `unreported` up to date with a class, and drops a class without pods.
    fn refresh(&mut self, id: ClassId) {
        let class = self.classes.get_mut(&id).expect("a class is kept as long as a pod belongs to it");
        let priority = Reverse(class.requirements.priority());
        if let Some(first) = class.first.take() {
            self.ready.remove(&(priority, first, id));
        }
        if class.pods.is_empty() && class.being_reported == 0 {
            let class = self.classes.remove(&id).expect("it was there above");
            self.by_requirements.remove(&class.requirements);
            self.retries.forget(&id);
            self.unreported.remove(&id);
            return;
        }
        if class.failed.is_none()
            && let Some(first) = class.pods.first()
        {
            class.first = Some(first.clone());
            self.ready.insert((priority, first.clone(), id));
        }
        if class.failed.is_some() && !class.unreported.is_empty() {
            self.unreported.insert(id);
        } else {
            self.unreported.remove(&id);
        }
    }
}

impl PodClass {
    /// Returns whether the pod was there.
    fn remove(&mut self, queued: &QueuedPod) -> bool {
        self.unreported.remove(queued);
        self.pods.remove(queued)
    }
}

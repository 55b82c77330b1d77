//! One pod: its record, its containers, and what stands between it and its end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_proto::event::Event;
use muster_proto::name::Uid;
use muster_proto::pod::{Container, Pod, PodStatus, RestartPolicy};
use muster_proto::time::Mono;

use super::container::{ContainerState, Exit, Retry, State};
use super::plan::PodTermination;
use crate::admission::Rejection;
use crate::resources::priority;

/// How far the node's own look at a pod has come.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Admission {
    /// Nobody looked yet.
    Open,
    /// Only labels speak against it: the node is read again first.
    NodeWanted,
    /// The node was read again; what is found now held.
    NodeRead,
    Admitted,
    Rejected(Rejection),
}

/// Since when each of the things that end a pod has been known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct StopCauses {
    /// Its record says so.
    pub(super) deleted: Option<Mono>,
    /// Its record is no more.
    pub(super) vanished: Option<Mono>,
    /// The node itself wants it.
    pub(super) ended: Option<Mono>,
    /// Its work is over, or the store calls it so.
    pub(super) finished: Option<Mono>,
}

/// What a pod has on the machine besides processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Held {
    Nothing,
    /// Its logs, and the records of how it ended.
    Files,
    /// Groups and processors, too.
    All,
}

/// How far the init containers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Init {
    /// This one is to run, or runs.
    At(usize),
    /// One failed and is not tried again.
    Failed,
    Done,
}

#[derive(Clone, Debug)]
pub(super) struct PodState {
    pub(super) uid: Uid,
    /// `None` for something the runtime has that no record was ever seen of.
    pub(super) pod: Option<Arc<Pod>>,
    /// For that case: what its own grace was.
    pub(super) kept_grace: Option<Duration>,
    pub(super) admission: Admission,
    pub(super) containers: BTreeMap<String, ContainerState>,
    pub(super) stop_causes: StopCauses,
    pub(super) termination: Option<PodTermination>,
    /// Whether "not ready" was said, or could not be.
    pub(super) is_unready_posted: bool,
    pub(super) held: Held,
    pub(super) is_delete_sent: bool,
    /// Whether the store was called and has not answered yet. It is asked one thing at a time.
    pub(super) is_calling: bool,
    /// The last status that was posted, and the version it became.
    pub(super) posted: Option<(u64, PodStatus)>,
    /// A status was refused because the record had left this version.
    pub(super) conflict_at: Option<u64>,
    pub(super) node_retry: Retry,
    pub(super) report_retry: Retry,
    pub(super) release_retry: Retry,
    pub(super) delete_retry: Retry,
    /// Events that have not been taken yet.
    pub(super) events: Vec<Event>,
}

impl PodState {
    pub(super) fn new(uid: Uid) -> Self {
        Self {
            uid,
            pod: None,
            kept_grace: None,
            admission: Admission::Open,
            containers: BTreeMap::new(),
            stop_causes: StopCauses::default(),
            termination: None,
            is_unready_posted: false,
            held: Held::Nothing,
            is_delete_sent: false,
            is_calling: false,
            posted: None,
            conflict_at: None,
            node_retry: Retry::default(),
            report_retry: Retry::default(),
            release_retry: Retry::default(),
            delete_retry: Retry::default(),
            events: Vec::new(),
        }
    }

    /// Something the runtime has, of which no record has been seen: it may hold anything.
    pub(super) fn found(uid: Uid) -> Self {
        Self { held: Held::All, ..Self::new(uid) }
    }

    pub(super) fn own_grace(&self) -> Duration {
        match &self.pod {
            Some(pod) => priority::own_grace(pod),
            None => self.kept_grace.unwrap_or(priority::DEFAULT_GRACE),
        }
    }

    /// When the pod's time is over; `None` while nothing ends it.
    ///
    /// Several ends may be under way, and the shortest counts. The deletion's grace is read off the record
    /// as it is now, so shortening it moves the deadline at once.
    pub(super) fn deadline(&self) -> Option<Mono> {
        let own = self.own_grace();
        let meta = self.pod.as_ref().map(|pod| &pod.meta);
        let deletion =
            meta.and_then(|meta| meta.deletion_grace_period_seconds).map_or(own, priority::seconds);
        let termination = self.termination.as_ref().map_or(own, |termination| termination.grace);
        let StopCauses { deleted, vanished, ended, finished } = self.stop_causes;
        [(deleted, deletion), (vanished, own), (ended, termination), (finished, own)]
            .into_iter()
            .filter_map(|(since, grace)| Some(since? + grace))
            .min()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stop_causes != StopCauses::default()
    }

    pub(super) fn is_alive(&self) -> bool {
        self.containers
            .values()
            .any(|container_state| container_state.is_alive() || container_state.has_stray_hook())
    }

    /// Whether nothing of the pod but files is left on the machine, and nothing will be again.
    pub(super) fn is_stopped(&self) -> bool {
        let is_closed = self.is_stopping() || matches!(self.admission, Admission::Rejected(_));
        is_closed && !self.is_alive() && self.held != Held::All
    }

    /// What a pod that ends may keep: as long as its record stays, somebody may want to know how it ended.
    pub(super) fn may_keep(&self) -> Held {
        let StopCauses { deleted, vanished, .. } = self.stop_causes;
        if deleted.or(vanished).is_some() { Held::Nothing } else { Held::Files }
    }

    /// Whether the pod takes room on the node: admitted, in the store, and not over.
    ///
    /// One whose record says that it ended takes none once nothing of it runs, even before what it held is let go: an
    /// agent that starts anew finds its files, and must not turn others away for them.
    pub(super) fn is_active(&self) -> bool {
        let has_ended = self.is_finished() && !self.is_alive();
        let is_held = self.admission == Admission::Admitted && self.stop_causes.vanished.is_none();
        is_held && !has_ended && !self.is_stopped()
    }

    /// Whether the store has the pod's end on record.
    fn is_finished(&self) -> bool {
        self.pod.as_ref().is_some_and(|pod| pod.is_finished())
    }

    pub(super) fn container_state(&self, name: &str) -> Option<&ContainerState> {
        self.containers.get(name)
    }

    fn policy(&self) -> RestartPolicy {
        self.pod.as_ref().map(|pod| pod.spec.restart_policy).unwrap_or_default()
    }

    /// Whether a container of the pod's own work starts again after it ended like this.
    pub(super) fn main_restarts(&self, container_state: &ContainerState) -> bool {
        match (self.policy(), container_state.exit()) {
            (_, None) => true,
            (RestartPolicy::Always, Some(_)) => true,
            (RestartPolicy::OnFailure, Some(exit)) => !exit.is_success(),
            (RestartPolicy::Never, Some(_)) => false,
        }
    }

    fn init_restarts(&self, container_state: &ContainerState) -> bool {
        // One of an earlier boot has not run yet, as far as this one is concerned.
        self.policy() != RestartPolicy::Never || container_state.exit().is_none() || !container_state.ran_here
    }

    pub(super) fn init(&self) -> Init {
        let Some(pod) = &self.pod else {
            return Init::Done;
        };
        let ran = |container: &Container| {
            self.container_state(&container.name).is_some_and(|container_state| container_state.ran_here)
        };
        // Where the work has begun, what prepares it is done, whatever is still known of it.
        if pod.spec.containers.iter().any(ran) {
            return Init::Done;
        }
        for (i, init) in pod.spec.init_containers.iter().enumerate() {
            let Some(container_state) = self.container_state(&init.name) else {
                return Init::At(i);
            };
            let is_done = container_state.ran_here
                && if init.sidecar {
                    container_state.state != State::Starting
                } else {
                    container_state.exit().is_some_and(Exit::is_success)
                };
            match (is_done, self.init_restarts(container_state) || init.sidecar) {
                (true, _) => {}
                (false, true) => return Init::At(i),
                (false, false) => return Init::Failed,
            }
        }
        Init::Done
    }

    /// Whether the pod's own work is over, and if so whether it went well.
    pub(super) fn result(&self) -> Option<bool> {
        let pod = self.pod.as_ref()?;
        if self.init() == Init::Failed {
            return Some(false);
        }
        let mut is_success = true;
        for container in &pod.spec.containers {
            let container_state = self.container_state(&container.name)?;
            if self.main_restarts(container_state) {
                return None;
            }
            is_success &= container_state.exit().is_some_and(Exit::is_success);
        }
        Some(is_success)
    }

    /// Whether every container of the pod's own work ended well the last time.
    pub(super) fn ended_well(&self) -> bool {
        let exit =
            |container: &Container| self.container_state(&container.name).and_then(ContainerState::exit);
        let went_well = |container| exit(container).is_some_and(Exit::is_success);
        self.pod.as_ref().is_some_and(|pod| pod.spec.containers.iter().all(went_well))
    }
}

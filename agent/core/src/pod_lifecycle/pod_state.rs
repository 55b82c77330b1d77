//! One pod: its record, its containers, and how far its stop is.

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

/// How far the admission of a pod is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Admission {
    /// Not checked yet.
    Open,
    /// Only the node's labels speak against it: the node is read again first.
    NodeWanted,
    /// The node was read again; the next check is final.
    NodeRead,
    Admitted,
    Rejected(Rejection),
}

/// Since when each cause that stops a pod has been known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct StopCauses {
    /// Its record is being deleted.
    pub(super) deleted: Option<Mono>,
    /// Its record does not exist any more.
    pub(super) vanished: Option<Mono>,
    /// The node terminates it.
    pub(super) ended: Option<Mono>,
    /// Its containers have finished, or the store says so.
    pub(super) finished: Option<Mono>,
}

/// What a pod has on the machine besides processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Held {
    Nothing,
    /// Its logs, and the records of its runs.
    Files,
    /// Cgroups and processors too.
    All,
}

/// How far the init containers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Init {
    /// This one has to run, or runs.
    At(usize),
    /// One failed and is not restarted.
    Failed,
    Done,
}

#[derive(Clone, Debug)]
pub(super) struct PodState {
    pub(super) uid: Uid,
    /// Whether the pod comes from a file of this node and not from the store.
    pub(super) is_static: bool,
    /// The record that shows a static pod in the store.
    pub(super) mirror: Option<Arc<Pod>>,
    /// `None` for a pod that the runtime has and of which no record was seen.
    pub(super) pod: Option<Arc<Pod>>,
    /// In that case: its grace period, as the runtime kept it.
    pub(super) kept_grace: Option<Duration>,
    pub(super) admission: Admission,
    pub(super) containers: BTreeMap<String, ContainerState>,
    pub(super) stop_causes: StopCauses,
    pub(super) termination: Option<PodTermination>,
    /// Whether the status that says "not ready" was posted, or could not be.
    pub(super) is_unready_posted: bool,
    pub(super) held: Held,
    pub(super) is_delete_sent: bool,
    /// Whether a call of the store is in progress; there is one at a time for each pod.
    pub(super) is_calling: bool,
    /// The last status that was posted, and the version that the record then had.
    pub(super) posted: Option<(u64, PodStatus)>,
    /// The version at which a post was refused with a conflict.
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
            is_static: false,
            mirror: None,
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

    /// A pod that the runtime has and of which no record was seen: it may have any resources.
    pub(super) fn found(uid: Uid) -> Self {
        Self { held: Held::All, ..Self::new(uid) }
    }

    /// Whether the store, or the directory of static pods, does not have it any more.
    pub(super) fn is_vanished(&self) -> bool {
        self.stop_causes.vanished.is_some()
    }

    /// The version and the status of the record that has the pod's status.
    pub(super) fn recorded(&self) -> Option<(u64, &PodStatus)> {
        let record = if self.is_static { self.mirror.as_deref() } else { self.pod.as_deref() };
        record.map(|record| (record.meta.resource_version, &record.status))
    }

    pub(super) fn own_grace(&self) -> Duration {
        match &self.pod {
            Some(pod) => priority::own_grace(pod),
            None => self.kept_grace.unwrap_or(priority::DEFAULT_GRACE),
        }
    }

    /// When the pod's grace period is over; `None` while nothing stops it.
    ///
    /// Several causes may stop it, and the earliest deadline counts. The grace period of a deletion is read from the
    /// current record, so shortening it moves the deadline at once.
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

    /// Whether only files of the pod are left on the machine, and it will not start again.
    pub(super) fn is_stopped(&self) -> bool {
        let is_closed = self.is_stopping() || matches!(self.admission, Admission::Rejected(_));
        is_closed && !self.is_alive() && self.held != Held::All
    }

    /// What a stopped pod may keep: as long as its record exists, its logs may be wanted.
    pub(super) fn may_keep(&self) -> Held {
        let StopCauses { deleted, vanished, .. } = self.stop_causes;
        if deleted.or(vanished).is_some() { Held::Nothing } else { Held::Files }
    }

    /// Whether the pod uses the node's allocatable resources: admitted, in the store, and not stopped.
    ///
    /// A pod whose record says that it finished uses none once none of its containers runs, even before its files are
    /// released: a restarted agent finds those files, and must not reject other pods for them.
    pub(super) fn is_active(&self) -> bool {
        let has_ended = self.is_finished() && !self.is_alive();
        let is_held = self.admission == Admission::Admitted && self.stop_causes.vanished.is_none();
        is_held && !has_ended && !self.is_stopped()
    }

    /// Whether the store has the pod's final status.
    fn is_finished(&self) -> bool {
        self.pod.as_ref().is_some_and(|pod| pod.is_finished())
    }

    pub(super) fn container_state(&self, name: &str) -> Option<&ContainerState> {
        self.containers.get(name)
    }

    fn policy(&self) -> RestartPolicy {
        self.pod.as_ref().map(|pod| pod.spec.restart_policy).unwrap_or_default()
    }

    /// Whether a main container is restarted after its last exit.
    pub(super) fn main_restarts(&self, container_state: &ContainerState) -> bool {
        match (self.policy(), container_state.exit()) {
            (_, None) => true,
            (RestartPolicy::Always, Some(_)) => true,
            (RestartPolicy::OnFailure, Some(exit)) => !exit.is_success(),
            (RestartPolicy::Never, Some(_)) => false,
        }
    }

    fn init_restarts(&self, container_state: &ContainerState) -> bool {
        // An init container that ran in an earlier boot only has to run again.
        self.policy() != RestartPolicy::Never || container_state.exit().is_none() || !container_state.ran_here
    }

    pub(super) fn init(&self) -> Init {
        let Some(pod) = &self.pod else {
            return Init::Done;
        };
        let ran = |container: &Container| {
            self.container_state(&container.name).is_some_and(|container_state| container_state.ran_here)
        };
        // Once a main container ran, the init containers are done, whatever is still known of them.
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

    /// Whether all main containers have finished for good, and if so whether all succeeded.
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

    /// Whether the last run of every main container succeeded.
    pub(super) fn ended_well(&self) -> bool {
        let exit =
            |container: &Container| self.container_state(&container.name).and_then(ContainerState::exit);
        let went_well = |container| exit(container).is_some_and(Exit::is_success);
        self.pod.as_ref().is_some_and(|pod| pod.spec.containers.iter().all(went_well))
    }
}

//! How the state of one pod changes with observations and outcomes.

use std::sync::Arc;

use muster_proto::pod::{Pod, PodStatus};

use super::container::{ContainerState, Hook, Retry};
use super::plan::{Action, Outcome, PodTermination};
use super::pod_state::{Admission, Held, PodState};
use super::pod_states::PodReport;
use super::pod_status as status;
use crate::admission::Rejection;
use muster_proto::time::Now;

impl PodState {
    pub(super) fn observe_pod(&mut self, pod: &Pod) {
        // The answer to our own write may be newer than what the watch has delivered.
        let newest = self.pod.as_ref().map_or(0, |held| held.meta.resource_version);
        if self.pod.is_none() || pod.meta.resource_version > newest {
            self.pod = Some(Arc::new(pod.clone()));
        }
        self.stop_causes.vanished = None;
    }

    /// A static pod never changes: a file that changed is another pod.
    pub(super) fn observe_static_pod(&mut self, pod: &Pod) {
        self.is_static = true;
        if self.pod.is_none() {
            self.pod = Some(Arc::new(pod.clone()));
        }
        self.stop_causes.vanished = None;
    }

    /// Whether the sources that could have the pod were read.
    pub(super) fn is_settled(&self, has_pods: bool, has_static: bool) -> bool {
        match &self.pod {
            Some(_) => self.is_static || has_pods,
            None => has_pods && has_static,
        }
    }

    /// Restores what an earlier process of this agent knew, if it had admitted the pod.
    pub(super) fn restore(&mut self, report: Option<&PodReport>, now: Now) {
        let Some(pod) = self.pod.clone() else {
            self.stop_causes.vanished.get_or_insert(now.mono);
            return;
        };
        let was_admitted = report.is_some() || pod.status.start_time.is_some() || pod.is_finished();
        if self.admission != Admission::Open || !was_admitted {
            return;
        }
        self.admission = Admission::Admitted;
        let is_gone = report.is_none() && pod.is_finished();
        self.held = if is_gone { Held::Nothing } else { Held::All };
        self.restore_containers(
            &pod.status,
            report.is_some_and(PodReport::is_this_boot) || pod.is_finished(),
        );
        self.observe_containers(report, now);
    }

    /// `is_same_boot`: what the init containers prepared is still there.
    fn restore_containers(&mut self, status: &PodStatus, is_same_boot: bool) {
        let inits = status.init_container_statuses.iter().filter(|_| is_same_boot);
        for container in inits.chain(&status.container_statuses) {
            self.containers.insert(container.name.clone(), ContainerState::from_status(container));
        }
    }

    pub(super) fn observe_containers(&mut self, report: Option<&PodReport>, now: Now) {
        let seen = |name: &str| report.and_then(|report| report.containers.get(name));
        for (name, container_state) in &mut self.containers {
            container_state.observed(seen(name), now);
        }
        for (name, found) in report.iter().flat_map(|report| &report.containers) {
            if !self.containers.contains_key(name) {
                let mut container_state = ContainerState::new();
                container_state.observed(Some(found), now);
                self.containers.insert(name.clone(), container_state);
            }
        }
    }

    /// Notes the causes that stop the pod, from the moment they are known.
    pub(super) fn update_stop_causes(&mut self, now: Now) {
        let Some(pod) = &self.pod else {
            return;
        };
        if pod.meta.is_deleting() {
            self.stop_causes.deleted.get_or_insert(now.mono);
        }
        let is_finished = pod.is_finished() || self.result().is_some();
        if self.admission == Admission::Admitted && is_finished {
            self.stop_causes.finished.get_or_insert(now.mono);
        }
    }

    pub(super) fn terminate(&mut self, termination: PodTermination, now: Now) {
        if self.termination.is_none() && !self.is_stopped() {
            self.termination = Some(termination);
            self.stop_causes.ended = Some(now.mono);
        }
    }

    /// An action is in progress beside the loop.
    pub(super) fn begin(&mut self, action: &Action, now: Now) {
        self.is_calling |= action.is_call();
        if let Action::Start { container, .. } = action {
            self.containers.entry(container.clone()).or_insert_with(ContainerState::new).begin(now);
        }
    }

    pub(super) fn observe(&mut self, action: &Action, outcome: Outcome, now: Now) {
        self.is_calling &= !action.is_call();
        match action {
            Action::ReadNode { .. } => match outcome {
                Outcome::Failed { .. } => self.node_retry.fail(now.mono),
                _ => self.admission = Admission::NodeRead,
            },
            Action::CreateMirror { .. } | Action::DeleteMirror { .. } => {}
            Action::Start { container, .. } => self.observe_start(container, outcome, now),
            Action::RunPreStop { container, .. } => {
                self.record_killing(container);
                let begun = if outcome == Outcome::Done { Hook::Running } else { Hook::Done };
                self.with(container, |container_state| container_state.hook = begun);
            }
            Action::Term { container, .. } => {
                self.record_killing(container);
                self.with(container, |container_state| {
                    container_state.term_tried.get_or_insert(now.mono);
                    match outcome {
                        Outcome::Failed { .. } => container_state.retry.fail(now.mono),
                        _ => container_state.term_sent = true,
                    }
                });
            }
            Action::Kill { container, .. } => {
                self.record_killing(container);
                self.with(container, |container_state| match outcome {
                    Outcome::Failed { .. } => container_state.retry.fail(now.mono),
                    _ => container_state.kill_sent = Some(now.mono),
                });
            }
            Action::Release { keeps_files, .. } => match outcome {
                Outcome::Failed { .. } => self.release_retry.fail(now.mono),
                _ => self.held = if *keeps_files { Held::Files } else { Held::Nothing },
            },
            Action::Report { if_version, status, .. } => {
                self.observe_report(*if_version, status, outcome, now);
            }
            Action::Delete { .. } => match outcome {
                Outcome::Gone => self.stop_causes.vanished = Some(now.mono),
                Outcome::Failed { .. } | Outcome::Conflict => self.delete_retry.fail(now.mono),
                _ => self.is_delete_sent = true,
            },
        }
    }

    fn with(&mut self, container: &str, change: impl FnOnce(&mut ContainerState)) {
        if let Some(container_state) = self.containers.get_mut(container) {
            change(container_state);
        }
    }

    fn observe_start(&mut self, container: &str, outcome: Outcome, now: Now) {
        match &outcome {
            Outcome::Started { .. } => self.record_started(container),
            // The start of a pod that is being stopped was killed: that is not a failure.
            Outcome::Failed { message } if !self.is_stopping() => self.record_start_failed(message),
            Outcome::Refused(rejection) => self.record_rejected(rejection),
            _ => {}
        }
        let own_grace = self.own_grace();
        let container_state = self.containers.entry(container.to_owned()).or_insert_with(ContainerState::new);
        match outcome {
            Outcome::Started { pid, at } => container_state.started(pid, at, now),
            Outcome::Failed { message } => container_state.could_not_start(message, now),
            Outcome::Refused(Rejection { reason, message }) => {
                container_state.refused();
                let termination = PodTermination { reason, message, grace: own_grace, is_disruption: false };
                self.terminate(termination, now);
            }
            Outcome::Done | Outcome::Stored(_) | Outcome::Conflict | Outcome::Gone => {
                container_state.accept(now);
            }
        }
    }

    fn observe_report(&mut self, if_version: u64, posted: &PodStatus, outcome: Outcome, now: Now) {
        if self.is_stopping() && !status::is_ready(posted) && outcome != Outcome::Conflict {
            // Posted, or impossible to post: neither may delay the stop.
            self.is_unready_posted = true;
        }
        match outcome {
            Outcome::Stored(pod) => {
                self.posted = Some((pod.meta.resource_version, posted.clone()));
                if let Some(own) = self.pod.as_mut().filter(|_| self.is_static) {
                    Arc::make_mut(own).status.clone_from(&pod.status);
                } else {
                    self.observe_pod(&pod);
                }
                self.report_retry = Retry::default();
                self.conflict_at = None;
            }
            Outcome::Conflict => {
                self.conflict_at = Some(if_version);
                self.report_retry.fail(now.mono);
            }
            // Only the mirror of a static pod is gone; there will be another.
            Outcome::Gone if self.is_static => {}
            Outcome::Gone => {
                self.stop_causes.vanished.get_or_insert(now.mono);
            }
            _ => {
                self.conflict_at = None;
                self.report_retry.fail(now.mono);
            }
        }
    }
}

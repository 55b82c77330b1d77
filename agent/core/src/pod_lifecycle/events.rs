//! The events of a pod on its node, in the kubelet's words.
//!
//! An event follows from an observation. It is kept as a value until the shell takes and records it.

use muster_proto::event::{Event, EventType, ObjectReference};

use super::container::{ContainerState, Exit};
use super::pod_state::PodState;
use crate::EVENT_SOURCE;
use crate::admission::Rejection;

/// How many events of a static pod wait for its mirror.
const MAX_WAITING_EVENTS: usize = 31;

impl PodState {
    pub(super) fn record_started(&mut self, container: &str) {
        self.record(EventType::Normal, "Started", format!("Started container {container}"));
    }

    pub(super) fn record_start_failed(&mut self, message: &str) {
        self.record(EventType::Warning, "Failed", format!("Error: {message}"));
    }

    pub(super) fn record_rejected(&mut self, rejection: &Rejection) {
        self.record(EventType::Warning, &rejection.reason, rejection.message.clone());
    }

    /// Records once for each run that the container is being stopped, however many signals that takes.
    pub(super) fn record_killing(&mut self, container: &str) {
        let Some(state) = self.containers.get_mut(container).filter(|state| state.is_alive()) else {
            return;
        };
        if !std::mem::replace(&mut state.is_stop_recorded, true) {
            self.record(EventType::Normal, "Killing", format!("Stopping container {container}"));
        }
    }

    /// Records once for each delay that a container waits before it is restarted.
    pub(super) fn record_back_offs(&mut self) {
        let (Some(pod), false) = (self.pod.clone(), self.is_stopping()) else {
            return;
        };
        let waits = |(name, state): (&String, &ContainerState)| {
            let is_new = state.is_backing_off && !state.is_back_off_recorded;
            (is_new && self.will_restart(name, state)).then(|| name.clone())
        };
        let waiting: Vec<String> = self.containers.iter().filter_map(waits).collect();
        let meta = &pod.meta;
        let namespace = meta.namespace.as_ref().map(ToString::to_string).unwrap_or_default();
        for name in waiting {
            if let Some(state) = self.containers.get_mut(&name) {
                state.is_back_off_recorded = true;
            }
            let message = format!(
                "Back-off restarting failed container {name} in pod {}_{namespace}({})",
                meta.name, self.uid
            );
            self.record(EventType::Warning, "BackOff", message);
        }
    }

    fn will_restart(&self, name: &str, state: &ContainerState) -> bool {
        let inits = self.pod.iter().flat_map(|pod| &pod.spec.init_containers);
        match inits.into_iter().find(|init| init.name == name) {
            Some(init) => init.sidecar || !state.exit().is_some_and(Exit::is_success),
            None => self.main_restarts(state),
        }
    }

    /// Without a record there is no pod to record an event about.
    fn record(&mut self, kind: EventType, reason: &str, message: String) {
        if let Some(pod) = &self.pod {
            let mut involved = ObjectReference::to(pod.as_ref());
            if self.is_static {
                // The store knows it by its mirror, which has a uid of its own. While there is none, old news goes first.
                involved.uid = None;
                self.events.drain(..self.events.len().saturating_sub(MAX_WAITING_EVENTS));
            }
            self.events.push(Event::about(involved, kind, reason, message, EVENT_SOURCE));
        }
    }
}

//! Whether a process is ready: one state behind `/readyz` and `grpc.health.v1`.
//!
//! A process declares [`Condition`]s, such as "the disk takes commits", and each names the gRPC services that cannot
//! answer without it. The code that owns a condition sets it once. The process is ready while all its conditions are;
//! a service serves while the conditions that it needs are. `deploy/README.md` lists the conditions of all processes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::watch;

/// The name that the health protocol gives to the whole process.
const WHOLE_PROCESS: &str = "";

/// The readiness of a process. Clones share it.
#[derive(Clone, Debug)]
pub struct Readiness {
    state: Arc<watch::Sender<State>>,
}

/// One condition of a process's readiness, for the code that owns it. Clones set the same condition.
#[derive(Clone, Debug)]
pub struct Condition {
    name: &'static str,
    state: Arc<watch::Sender<State>>,
}

/// The conditions of a process at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    services: BTreeSet<&'static str>,
    conditions: BTreeMap<&'static str, ConditionState>,
    is_stopping: bool,
}

#[derive(Clone, Debug)]
struct ConditionState {
    needed_by: &'static [&'static str],
    /// Why the condition does not hold; `None` while it does.
    problem: Option<String>,
}

impl Readiness {
    /// A process with these gRPC services (full names, such as `muster.v1.NodeService`). It is ready until a condition
    /// is declared.
    pub fn new(services: impl IntoIterator<Item = &'static str>) -> Readiness {
        let state = State { services: services.into_iter().collect(), ..State::default() };
        Readiness { state: Arc::new(watch::Sender::new(state)) }
    }

    /// Declares a condition. It does not hold until [`Condition::set`] says so; `problem` is the reason until then.
    ///
    /// The services in `needed_by` do not serve while it does not hold. The others still do: the process as a whole is
    /// not ready, but their calls are answered.
    pub fn condition(
        &self,
        name: &'static str,
        problem: &str,
        needed_by: &'static [&'static str],
    ) -> Condition {
        let state = ConditionState { needed_by, problem: Some(problem.to_owned()) };
        self.state.send_modify(|all| drop(all.conditions.insert(name, state)));
        Condition { name, state: Arc::clone(&self.state) }
    }

    /// The process stops: neither it nor any of its services becomes ready again.
    pub fn stop(&self) {
        self.state.send_modify(|state| state.is_stopping = true);
    }

    pub fn is_ready(&self) -> bool {
        self.state.borrow().problems().is_empty()
    }

    /// Each condition that does not hold with its reason, ordered by name: `watches: not synced with the store`.
    pub fn problems(&self) -> Vec<String> {
        self.state.borrow().problems()
    }

    /// The state, now and whenever it changes.
    pub(crate) fn subscribe(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }
}

impl Condition {
    /// The condition holds, or does not for this reason. The log says so when that changes.
    pub fn set(&self, holds: Result<(), String>) {
        let mut was_ready = false;
        let problem = holds.err();
        let changed = self.state.send_if_modified(|all| {
            let Some(condition) = all.conditions.get_mut(self.name) else { return false };
            was_ready = condition.problem.is_none();
            let changed = condition.problem != problem;
            condition.problem.clone_from(&problem);
            changed
        });
        match problem {
            None if changed => tracing::info!(condition = self.name, "ready"),
            Some(reason) if was_ready => tracing::warn!(condition = self.name, reason, "not ready"),
            _ => {}
        }
    }
}

impl State {
    fn problems(&self) -> Vec<String> {
        let failing = self.conditions.iter().filter_map(|(name, condition)| {
            condition.problem.as_ref().map(|problem| format!("{name}: {problem}"))
        });
        let stopping = self.is_stopping.then(|| "shutdown: the process is stopping".to_owned());
        failing.chain(stopping).collect()
    }

    /// Whether a service serves, or with the empty name the whole process; `None` if there is no such service.
    pub(crate) fn serves(&self, service: &str) -> Option<bool> {
        if service == WHOLE_PROCESS {
            return Some(self.problems().is_empty());
        }
        self.services.contains(service).then(|| {
            let mut needed = self.conditions.values().filter(|it| it.needed_by.contains(&service));
            !self.is_stopping && needed.all(|condition| condition.problem.is_none())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READS: &str = "test.v1.ReadService";
    const WRITES: &str = "test.v1.WriteService";

    fn served(readiness: &Readiness) -> [Option<bool>; 4] {
        let state = readiness.subscribe();
        let state = state.borrow();
        ["", READS, WRITES, "test.v1.Unknown"].map(|service| state.serves(service))
    }

    #[test]
    fn a_condition_stops_the_process_and_the_services_that_need_it() {
        let readiness = Readiness::new([READS, WRITES]);
        assert!(readiness.is_ready(), "without conditions");
        let disk = readiness.condition("disk", "not checked yet", &[WRITES]);
        let watches = readiness.condition("watches", "not synced yet", &[READS, WRITES]);
        assert_eq!(readiness.problems(), ["disk: not checked yet", "watches: not synced yet"]);
        assert_eq!(served(&readiness), [Some(false), Some(false), Some(false), None]);

        watches.set(Ok(()));
        assert_eq!(served(&readiness), [Some(false), Some(true), Some(false), None], "reads need no disk");
        disk.clone().set(Ok(()));
        assert_eq!(served(&readiness), [Some(true), Some(true), Some(true), None]);

        disk.set(Err("full".to_owned()));
        assert_eq!(readiness.problems(), ["disk: full"]);
        assert!(!readiness.is_ready());
        disk.set(Ok(()));
        assert!(readiness.is_ready(), "a condition can come back");
    }

    #[test]
    fn a_process_that_stops_serves_nothing_whatever_its_conditions() {
        let readiness = Readiness::new([READS, WRITES]);
        let disk = readiness.condition("disk", "not checked yet", &[WRITES]);
        readiness.stop();
        disk.set(Ok(()));
        assert_eq!(served(&readiness), [Some(false), Some(false), Some(false), None]);
        assert_eq!(readiness.problems(), ["shutdown: the process is stopping"]);
    }

    #[test]
    fn a_condition_that_is_set_to_what_it_was_wakes_no_watcher() {
        let readiness = Readiness::new([READS]);
        let disk = readiness.condition("disk", "full", &[]);
        let state = readiness.subscribe();
        disk.set(Err("full".to_owned()));
        assert!(!state.has_changed().unwrap());
        disk.set(Ok(()));
        assert!(state.has_changed().unwrap());
    }
}

//! One container: its state, its restarts, and when it may start again.

use std::time::Duration;

use jiff::Timestamp;
use muster_proto::backoff::Backoff;
use muster_proto::time::Mono;

use muster_proto::time::Now;

/// How long a container that keeps exiting waits before a restart: the first time not at all, then this.
const CRASH: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(300));
/// After a run of this length the count of crashes starts again at 0.
const STEADY_AFTER: Duration = Duration::from_secs(600);
/// When to retry an action that failed on the machine.
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
/// The exit code of a container whose exit was not observed.
const UNKNOWN_EXIT_CODE: i32 = 137;
/// The exit code of a container that could not be started.
const START_ERROR_CODE: i32 = 128;

/// The newest attempt at a container that the runtime reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerReport {
    /// 0 for the first start, one more for each restart.
    pub attempt: u32,
    /// Whether it ran in the machine's current boot: what an init container of an earlier boot prepared is gone.
    pub is_this_boot: bool,
    pub observed: ReportedState,
}

/// The state that the runtime reports for a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportedState {
    /// Its start was accepted and it does not run yet.
    Waiting,
    Running {
        pid: u32,
        since: Timestamp,
    },
    Exited(Exit),
}

/// How a run of a container terminated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    pub code: i32,
    pub signal: i32,
    pub reason: String,
    pub message: String,
    pub started_at: Option<Timestamp>,
    pub at: Option<Timestamp>,
}

impl Exit {
    pub fn is_success(&self) -> bool {
        self.code == 0 && self.signal == 0
    }
}

/// The state of a container.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum State {
    /// It has not run yet, or not since the machine booted.
    New,
    /// The runtime is starting it.
    Starting,
    Running {
        since: Timestamp,
    },
    Exited(Exit),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    NotStarted,
    Running,
    Done,
}

/// The delay between attempts at one action.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Retry {
    failures: u32,
    pub(super) not_before: Mono,
}

impl Retry {
    pub(super) fn fail(&mut self, now: Mono) {
        self.failures = self.failures.saturating_add(1);
        self.not_before = now + RETRY.delay(self.failures, 0.0);
    }
}

/// What is kept of one container.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ContainerState {
    pub(super) state: State,
    /// The runtime's id of the container.
    pub(super) id: String,
    pub(super) pid: Option<u32>,
    /// How many runs there were before this one.
    pub(super) restarts: u32,
    /// How the run before this one terminated.
    pub(super) last: Option<Exit>,
    /// Whether it ran in the current boot, as far as the runtime knows.
    pub(super) ran_here: bool,
    /// Since when its start has been in progress.
    pub(super) begun: Option<Mono>,
    pub(super) hook: Hook,
    pub(super) term_sent: bool,
    /// When TERM was first sent, whether or not it arrived.
    pub(super) term_tried: Option<Mono>,
    pub(super) kill_sent: Option<Mono>,
    pub(super) retry: Retry,
    crashes: u32,
    steady_from: Mono,
    /// When it may start again.
    pub(super) not_before: Mono,
    pub(super) is_backing_off: bool,
    /// The current delay, and when it is over, for people.
    pub(super) back_off: Option<(Duration, Timestamp)>,
    /// Whether this run's stop has its event.
    pub(super) is_stop_recorded: bool,
    /// Whether the current back-off has its event.
    pub(super) is_back_off_recorded: bool,
}

impl ContainerState {
    pub(super) fn new() -> Self {
        Self {
            state: State::New,
            id: String::new(),
            pid: None,
            restarts: 0,
            last: None,
            ran_here: false,
            begun: None,
            hook: Hook::NotStarted,
            term_sent: false,
            term_tried: None,
            kill_sent: None,
            retry: Retry::default(),
            crashes: 0,
            steady_from: Mono::ZERO,
            not_before: Mono::ZERO,
            is_backing_off: false,
            back_off: None,
            is_stop_recorded: false,
            is_back_off_recorded: false,
        }
    }

    pub(super) fn is_alive(&self) -> bool {
        matches!(self.state, State::Starting | State::Running { .. })
    }

    /// Whether its hook still runs after the container has exited.
    pub(super) fn has_stray_hook(&self) -> bool {
        self.hook == Hook::Running && !self.is_alive()
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    /// How it terminated, if it did and was not started again.
    pub(super) fn exit(&self) -> Option<&Exit> {
        match &self.state {
            State::Exited(exit) => Some(exit),
            _ => None,
        }
    }

    /// The number of the attempt that a start would make.
    pub(super) fn next_attempt(&self) -> u32 {
        match self.state {
            State::New if self.last.is_none() => self.restarts,
            _ => self.restarts.saturating_add(1),
        }
    }

    /// A start was accepted: the run before it is the last one now.
    pub(super) fn starting(&mut self, now: Now) {
        self.restarts = self.next_attempt();
        if let State::Exited(exit) = &self.state {
            self.last = Some(exit.clone());
        }
        self.state = State::Starting;
        (self.hook, self.term_sent, self.term_tried, self.kill_sent) = (Hook::NotStarted, false, None, None);
        self.is_backing_off = false;
        (self.is_stop_recorded, self.is_back_off_recorded) = (false, false);
        self.steady_from = now.mono;
    }

    /// A start is in progress. What the runtime lists meanwhile is from before the start, or not final.
    pub(super) fn begin(&mut self, now: Now) {
        self.starting(now);
        self.begun = Some(now.mono);
    }

    pub(super) fn started(&mut self, pid: u32, since: Timestamp, now: Now) {
        self.accept(now);
        self.run(pid, since, now);
    }

    /// The start was accepted.
    pub(super) fn accept(&mut self, now: Now) {
        if self.begun.take().is_none() {
            self.starting(now);
        }
    }

    /// The start was refused, and does not count as a run.
    pub(super) fn refused(&mut self) {
        if self.begun.take().is_some() {
            self.state = State::New;
        }
    }

    fn run(&mut self, pid: u32, since: Timestamp, now: Now) {
        self.state = State::Running { since };
        self.pid = Some(pid);
        self.id = format!("process://{pid}");
        self.ran_here = true;
        self.is_backing_off = false;
        self.steady_from = now.mono;
    }

    /// The start failed. It counts as a crash, and even the first restart waits.
    pub(super) fn could_not_start(&mut self, message: String, now: Now) {
        self.accept(now);
        self.crashes = self.crashes.max(1);
        self.end(
            Exit {
                code: START_ERROR_CODE,
                signal: 0,
                reason: "StartError".to_owned(),
                message,
                started_at: None,
                at: Some(now.wall),
            },
            now,
        );
    }

    /// Folds in the runtime's report; `None` means that the runtime does not have the container.
    pub(super) fn observed(&mut self, found: Option<&ContainerReport>, now: Now) {
        if self.begun.is_some() {
            return;
        }
        if let Some(found) = found {
            self.ran_here |= found.is_this_boot && found.observed != ReportedState::Waiting;
            self.catch_up(found.attempt, now);
        }
        // A report about an earlier run says nothing about the current one.
        let found = found.filter(|found| found.attempt >= self.restarts);
        let is_this_boot = found.is_none_or(|found| found.is_this_boot);
        match found.map(|found| &found.observed) {
            Some(ReportedState::Waiting) if !self.is_alive() => self.state = State::Starting,
            Some(ReportedState::Waiting) => {}
            Some(ReportedState::Running { pid, since }) => {
                // The steady time of a run starts when the run is first observed.
                if self.pid != Some(*pid) || !self.is_running() {
                    self.run(*pid, *since, now);
                }
                self.state = State::Running { since: *since };
            }
            // The runtime reports an exit again until the next start.
            Some(ReportedState::Exited(_)) if self.exit().is_some() => {}
            Some(ReportedState::Exited(exit)) => {
                self.end(exit.clone(), now);
                // A reboot is not a crash of the container.
                if !is_this_boot {
                    (self.crashes, self.is_backing_off, self.not_before) = (0, false, now.mono);
                }
            }
            None if self.is_alive() => {
                let exit = Exit {
                    code: UNKNOWN_EXIT_CODE,
                    signal: 0,
                    reason: "ContainerStatusUnknown".to_owned(),
                    message: "the exit of the container was not observed".to_owned(),
                    started_at: self.since(),
                    at: Some(now.wall),
                };
                self.end(exit, now);
            }
            None => {}
        }
    }

    /// Attempts that were never posted count too: an agent stopped before it could post, or the store could not be
    /// reached.
    fn catch_up(&mut self, attempt: u32, now: Now) {
        if attempt > self.restarts {
            self.starting(now);
            self.restarts = attempt;
        }
    }

    fn end(&mut self, exit: Exit, now: Now) {
        if self.is_running() && now.mono - self.steady_from >= STEADY_AFTER {
            self.crashes = 0;
        }
        let delay = if self.crashes == 0 { Duration::ZERO } else { CRASH.delay(self.crashes, 0.0) };
        self.crashes = self.crashes.saturating_add(1);
        self.not_before = now.mono + delay;
        self.is_backing_off = !delay.is_zero();
        self.back_off = now.wall.checked_add(delay).ok().map(|until| (delay, until));
        self.state = State::Exited(exit);
        self.pid = None;
    }

    fn since(&self) -> Option<Timestamp> {
        match self.state {
            State::Running { since } => Some(since),
            _ => None,
        }
    }
}

//! Cordons and drains: the requester, the reason and the outcome.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;

/// The owner of the cordon that belongs to a node's drain.
pub const DRAIN_OWNER: &str = "drain";
/// The owner of a cordon that was requested by writing `spec.unschedulable`.
pub const FIELD_OWNER: &str = "spec.unschedulable";

/// A request to place no new pods on a node. A node has one for each owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cordon {
    /// The identity of the requester, [`DRAIN_OWNER`] or [`FIELD_OWNER`].
    pub owner: String,
    /// The identity of the requester; empty for [`FIELD_OWNER`].
    pub requested_by: String,
    /// The reason that the requester gave.
    pub reason: String,
    pub requested_at: Timestamp,
    /// When it ends by itself; `None` means never.
    pub expires_at: Option<Timestamp>,
}

impl Cordon {
    /// The cordon of a client that set `spec.unschedulable`.
    pub fn of_field(now: Timestamp) -> Cordon {
        Cordon {
            owner: FIELD_OWNER.to_owned(),
            requested_by: String::new(),
            reason: "a client set the field".to_owned(),
            requested_at: now,
            expires_at: None,
        }
    }

    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// Whose cordon it is, in words.
    pub fn who(&self) -> String {
        match self.owner.as_str() {
            DRAIN_OWNER => format!("the drain of {}", self.requested_by),
            owner => owner.to_owned(),
        }
    }
}

/// A drain: the request and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drain {
    /// The identity of the requester.
    pub requested_by: String,
    /// The reason that the requester gave.
    pub reason: String,
    pub requested_at: Timestamp,
    /// When the drain fails if it is not complete; `None` means never.
    pub deadline: Option<Timestamp>,
    pub options: DrainOptions,
    pub state: DrainState,
    /// The state in a sentence.
    pub message: String,
    pub finished_at: Option<Timestamp>,
}

/// Which pods a drain evicts, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainOptions {
    /// Also evict pods without a controller owner, and pods whose daemon set is missing.
    pub force: bool,
    /// Leave pods of daemon sets running. Without this they block the drain.
    pub ignore_daemonsets: bool,
    /// Also evict pods with emptyDir volumes.
    pub delete_emptydir_data: bool,
    /// Delete pods instead of evicting them: disruption budgets do not apply.
    pub disable_eviction: bool,
    /// `None` means each pod's own; never negative.
    pub grace_period_seconds: Option<i64>,
    /// Do not wait for pods that have been terminating for longer than this many seconds; 0 waits for all.
    pub skip_wait_for_delete_seconds: i64,
}

/// The progress of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DrainState {
    Draining,
    Complete,
    Failed,
}

/// The text is not a state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be Draining, Complete or Failed")]
pub struct DrainStateError;

impl Drain {
    /// Whether the drain is still running.
    pub fn is_under_way(&self) -> bool {
        self.state == DrainState::Draining
    }
}

impl FromStr for DrainState {
    type Err = DrainStateError;

    fn from_str(text: &str) -> Result<Self, DrainStateError> {
        match text {
            "Draining" => Ok(Self::Draining),
            "Complete" => Ok(Self::Complete),
            "Failed" => Ok(Self::Failed),
            _ => Err(DrainStateError),
        }
    }
}

impl fmt::Display for DrainState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Draining => "Draining",
            Self::Complete => "Complete",
            Self::Failed => "Failed",
        })
    }
}

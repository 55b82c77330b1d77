//! Cordons and drains: who asked for a node to be left alone or emptied, why, and what became of it.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;

/// Who keeps pods away from a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cordon {
    /// The caller's identity.
    pub requested_by: String,
    /// In the caller's words.
    pub reason: String,
    pub requested_at: Timestamp,
}

/// A drain: intent, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drain {
    /// The caller's identity.
    pub requested_by: String,
    /// In the caller's words.
    pub reason: String,
    pub requested_at: Timestamp,
    /// When it is given up; `None` means never.
    pub deadline: Option<Timestamp>,
    pub options: DrainOptions,
    pub state: DrainState,
    /// The state in a sentence.
    pub message: String,
    pub finished_at: Option<Timestamp>,
}

/// Which pods a drain may touch, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainOptions {
    /// Pods that nothing manages, and those of a missing daemon set, go too.
    pub force: bool,
    /// Pods of daemon sets are left running instead of being in the way.
    pub ignore_daemonsets: bool,
    /// Pods with emptyDir volumes go too.
    pub delete_emptydir_data: bool,
    /// Delete instead of evicting: disruption budgets are not asked.
    pub disable_eviction: bool,
    /// `None` means each pod's own; never negative.
    pub grace_period_seconds: Option<i64>,
    /// Pods that have been ending for longer than this many seconds are not waited for; 0 waits for all.
    pub skip_wait_for_delete_seconds: i64,
}

/// How far a drain has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DrainState {
    Draining,
    Complete,
    Failed,
}

/// The text names no state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be Draining, Complete or Failed")]
pub struct DrainStateError;

impl Drain {
    /// Whether it still has something to do.
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

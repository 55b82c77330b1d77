//! What the outcome of an action means for its decisions.

use muster_proto::taint::Taint;
use muster_proto::time::Now;
use muster_proto::wellknown::taint::{NOT_READY, UNREACHABLE};

use super::{Completion, DecisionOutcome, DecisionResult};
use crate::node_lifecycle::noexecute_taints::is_health_taint;
use crate::plan::{Answer, Failure, Outcome};

/// What came of an action, for its decisions.
pub(super) fn outcome_of(outcome: &Outcome, completion: &Completion, now: Now) -> DecisionOutcome {
    let (result, revision, reason) = match &outcome.result {
        Ok(Answer::Node(node)) => (DecisionResult::Written, node.meta.resource_version, String::new()),
        Ok(Answer::Pod(pod)) => (DecisionResult::Written, pod.meta.resource_version, String::new()),
        Ok(Answer::Lease(_) | Answer::Cloud(_) | Answer::Machine(_)) => {
            (DecisionResult::Written, 0, String::new())
        }
        Err(failure) => {
            let result = match failure {
                _ if completion.is_superseded => DecisionResult::Superseded,
                Failure::Conflict => DecisionResult::Conflict,
                Failure::Gone => DecisionResult::Superseded,
                Failure::Budget { .. } | Failure::Refused(_) => DecisionResult::Refused,
                Failure::Later(_) => DecisionResult::Failed,
                Failure::Unknown(_) => DecisionResult::Unknown,
            };
            (result, 0, failure.to_string())
        }
    };
    DecisionOutcome { result, revision, reason, at: now.wall }
}

/// Whether a node is healthy after the write, so that its next failure has nothing to do with this one.
pub(super) fn is_as_it_should_be(outcome: &Outcome) -> bool {
    let Ok(Answer::Node(node)) = &outcome.result else { return false };
    let unhealthy =
        |taint: &Taint| is_health_taint(taint) || [NOT_READY, UNREACHABLE].contains(&taint.key.as_str());
    node.is_ready() && !node.spec.taints.iter().any(unhealthy)
}

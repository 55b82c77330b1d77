//! Which decisions are the same again, and not worth another record.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::causes::TIME;
use super::{Decision, DecisionResult, DecisionState, Rule};

/// Whether the same again is not worth a record. Each write that was made is.
pub(super) fn may_be_repeated(decision: &Decision) -> bool {
    let is_written =
        decision.outcome.as_ref().is_some_and(|outcome| outcome.result == DecisionResult::Written);
    !is_written && decision.cause.rule != Rule::HeartbeatGap
}

pub(super) fn fingerprint_of(decision: &Decision) -> u64 {
    let result = decision.outcome.as_ref().map(|outcome| outcome.result);
    let why = decision.outcome.as_ref().map_or("", |outcome| outcome.reason.as_str());
    let times = decision.cause.inputs.iter().filter(|input| input.unit == TIME);
    let times = times.map(|input| input.value.as_str());
    fingerprint(decision.cause.rule.id(), decision.state, result, &decision.cause.reason, why, times)
}

/// What makes a reason the same as another. A failed action is the same as long as it fails for the same reason, however
/// long its node has been silent by now.
pub(super) fn fingerprint<'a>(
    rule: &str,
    state: DecisionState,
    result: Option<DecisionResult>,
    reason: &str,
    why: &str,
    times: impl Iterator<Item = &'a str>,
) -> u64 {
    let mut hasher = DefaultHasher::new();
    (rule, state, result, why).hash(&mut hasher);
    if state != DecisionState::Acted {
        reason.hash(&mut hasher);
        times.for_each(|time| time.hash(&mut hasher));
    }
    hasher.finish()
}

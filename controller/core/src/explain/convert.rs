//! Domain types of an explanation as messages of the schema. Each enum has its conversion here and nowhere else.

use std::time::Duration;

use muster_proto::key::Key;
use muster_proto::pb;
use muster_proto::pod::Pod;
use muster_proto::time::{Mono, Now};

use super::eviction::PodEviction;
use super::fleet::FleetState;
use super::{EvictionDecision, Explanation, ExplanationAction, ExplanationState};
use crate::drain::filters::PodAction;
use crate::drain::progress::{DrainProgress, PodProgress, PodState, ProgressState};
use crate::node_lifecycle::eviction_hold::HoldCause;
use crate::node_lifecycle::liveness::SignOfLife;
use crate::node_lifecycle::zone_state::ZoneState;
use crate::plan::uid;

impl Explanation {
    pub(crate) fn into_pb(self, now: Now) -> pb::Explanation {
        let Explanation { action, state, reason, inputs, earliest, decision } = self;
        pb::Explanation {
            action: pb::ExplanationAction::from(action).into(),
            state: pb::ExplanationState::from(state).into(),
            reason,
            inputs,
            earliest: earliest.and_then(|at| timestamp(now, at)),
            decision_id: decision,
        }
    }
}

impl PodEviction {
    pub(crate) fn into_pb(self, pod: &Pod, now: Now) -> pb::PodExplanation {
        let key = Key::of(pod);
        pb::PodExplanation {
            namespace: key.namespace.as_ref().map(ToString::to_string).unwrap_or_default(),
            name: key.name.to_string(),
            uid: uid(&pod.meta).to_string(),
            decision: pb::EvictionDecision::from(self.decision).into(),
            reason: self.reason,
            earliest_eviction: self.earliest.and_then(|at| timestamp(now, at.max(now.mono))),
            taint: self.taint.map(Into::into),
            toleration: self.toleration.map(Into::into),
            decision_id: 0,
        }
    }
}

impl DrainProgress {
    pub fn into_pb(self, now: Now) -> pb::DrainNodeResponse {
        pb::DrainNodeResponse {
            state: pb::DrainProgressState::from(self.state).into(),
            message: self.message,
            pods: self.pods.into_iter().map(|pod| drain_pod(pod, now)).collect(),
        }
    }
}

fn drain_pod(pod: PodProgress, now: Now) -> pb::DrainPod {
    pb::DrainPod {
        namespace: pod.key.namespace.as_ref().map(ToString::to_string).unwrap_or_default(),
        name: pod.key.name.to_string(),
        uid: pod.uid.to_string(),
        action: pb::DrainPodAction::from(pod.action).into(),
        state: pb::DrainPodState::from(pod.state).into(),
        reason: pod.reason,
        retry_at: pod.retry_at.and_then(|at| timestamp(now, at)),
    }
}

impl From<FleetState> for pb::FleetState {
    fn from(state: FleetState) -> pb::FleetState {
        match state {
            FleetState::Standby => pb::FleetState::Standby,
            FleetState::Syncing => pb::FleetState::Syncing,
            FleetState::Holding => pb::FleetState::Holding,
            FleetState::Normal => pb::FleetState::Normal,
            FleetState::FullDisruption => pb::FleetState::FullDisruption,
        }
    }
}

impl From<HoldCause> for pb::HoldCause {
    fn from(cause: HoldCause) -> pb::HoldCause {
        match cause {
            HoldCause::Start => pb::HoldCause::Start,
            HoldCause::Interruption => pb::HoldCause::Interruption,
        }
    }
}

impl From<ZoneState> for pb::ZoneState {
    fn from(state: ZoneState) -> pb::ZoneState {
        match state {
            ZoneState::Initial => pb::ZoneState::Initial,
            ZoneState::Normal => pb::ZoneState::Normal,
            ZoneState::PartialDisruption => pb::ZoneState::PartialDisruption,
            ZoneState::FullDisruption => pb::ZoneState::FullDisruption,
        }
    }
}

impl From<SignOfLife> for pb::SignOfLife {
    fn from(sign: SignOfLife) -> pb::SignOfLife {
        match sign {
            SignOfLife::Lease => pb::SignOfLife::Lease,
            SignOfLife::Status => pb::SignOfLife::Status,
            SignOfLife::FirstSeen => pb::SignOfLife::FirstSeen,
            SignOfLife::Created => pb::SignOfLife::Created,
        }
    }
}

impl From<ExplanationAction> for pb::ExplanationAction {
    fn from(action: ExplanationAction) -> pb::ExplanationAction {
        match action {
            ExplanationAction::MarkUnknown => pb::ExplanationAction::MarkUnknown,
            ExplanationAction::Taint => pb::ExplanationAction::Taint,
            ExplanationAction::Untaint => pb::ExplanationAction::Untaint,
            ExplanationAction::Schedule => pb::ExplanationAction::Schedule,
            ExplanationAction::AssignCidr => pb::ExplanationAction::AssignCidr,
            ExplanationAction::Drain => pb::ExplanationAction::Drain,
            ExplanationAction::DeleteNode => pb::ExplanationAction::DeleteNode,
            ExplanationAction::PodGc => pb::ExplanationAction::PodGc,
            ExplanationAction::Preempt => pb::ExplanationAction::Preempt,
        }
    }
}

impl From<ExplanationState> for pb::ExplanationState {
    fn from(state: ExplanationState) -> pb::ExplanationState {
        match state {
            ExplanationState::None => pb::ExplanationState::None,
            ExplanationState::Done => pb::ExplanationState::Done,
            ExplanationState::Due => pb::ExplanationState::Due,
            ExplanationState::Waiting => pb::ExplanationState::Waiting,
            ExplanationState::Queued => pb::ExplanationState::Queued,
            ExplanationState::Slowed => pb::ExplanationState::Slowed,
            ExplanationState::Paused => pb::ExplanationState::Paused,
            ExplanationState::Refused => pb::ExplanationState::Refused,
        }
    }
}

impl From<EvictionDecision> for pb::EvictionDecision {
    fn from(decision: EvictionDecision) -> pb::EvictionDecision {
        match decision {
            EvictionDecision::Keep => pb::EvictionDecision::Keep,
            EvictionDecision::Evict => pb::EvictionDecision::Evict,
            EvictionDecision::Terminating => pb::EvictionDecision::Terminating,
        }
    }
}

impl From<ProgressState> for pb::DrainProgressState {
    fn from(state: ProgressState) -> pb::DrainProgressState {
        match state {
            ProgressState::Planned => pb::DrainProgressState::Planned,
            ProgressState::Refused => pb::DrainProgressState::Refused,
            ProgressState::Draining => pb::DrainProgressState::Draining,
            ProgressState::Complete => pb::DrainProgressState::Complete,
            ProgressState::Failed => pb::DrainProgressState::Failed,
            ProgressState::Cancelled => pb::DrainProgressState::Cancelled,
        }
    }
}

impl From<PodAction> for pb::DrainPodAction {
    fn from(action: PodAction) -> pb::DrainPodAction {
        match action {
            PodAction::Evict => pb::DrainPodAction::Evict,
            PodAction::Delete => pb::DrainPodAction::Delete,
            PodAction::Leave => pb::DrainPodAction::Leave,
            PodAction::Skip => pb::DrainPodAction::Skip,
            PodAction::Refuse(_) => pb::DrainPodAction::Refuse,
        }
    }
}

impl From<PodState> for pb::DrainPodState {
    fn from(state: PodState) -> pb::DrainPodState {
        match state {
            PodState::Waiting => pb::DrainPodState::Waiting,
            PodState::Blocked => pb::DrainPodState::Blocked,
            PodState::Stopping => pb::DrainPodState::Stopping,
            PodState::Gone => pb::DrainPodState::Gone,
            PodState::Stays => pb::DrainPodState::Stays,
        }
    }
}

/// The wall-clock time of a moment of our monotonic clock.
pub(crate) fn timestamp(now: Now, moment: Mono) -> Option<prost_types::Timestamp> {
    let time = now.wall_of(moment);
    let (seconds, nanos) = (time.as_second(), time.subsec_nanosecond());
    Some(prost_types::Timestamp { seconds, nanos: nanos.max(0) })
}

pub(crate) fn duration(time: Duration) -> prost_types::Duration {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    prost_types::Duration { seconds, nanos: time.subsec_nanos().cast_signed() }
}

pub(crate) fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

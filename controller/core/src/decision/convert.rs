//! Decisions as messages of the schema, and what a new leader reads of them.

use jiff::Timestamp;
use muster_proto::key::Key;
use muster_proto::name::Uid;
use muster_proto::pb;

use super::causes::TIME;
use super::repetition::fingerprint;
use super::takeover::{Recorded, Seed};
use super::{
    Aggregate, Cause, Decision, DecisionOutcome, DecisionResult, DecisionState, DecisionSubject, Input, Rule,
};
use crate::node_lifecycle::zone_state::ZoneKey;

impl Decision {
    /// The message, as recorded by that leader in that term.
    pub fn into_pb(self, leader: &str, term: u64) -> pb::Decision {
        let Decision { id, at, controller, subject, uid, node, zone, state, .. } = self;
        let Cause { rule, reason, inputs } = self.cause;
        pb::Decision {
            id,
            time: Some(timestamp(at)),
            controller: controller.as_str().to_owned(),
            leader: leader.to_owned(),
            term,
            subject: Some(subject_pb(&subject, uid)),
            node: node.map(|node| node.to_string()).unwrap_or_default(),
            zone: zone.map(|zone| zone.to_string()).unwrap_or_default(),
            state: pb::DecisionState::from(state).into(),
            action: self.action.to_owned(),
            rule: rule.id().to_owned(),
            reason: shortened(reason),
            inputs: inputs.into_iter().map(input).collect(),
            outcome: self.outcome.map(outcome),
            trace_id: self.trace_id,
            follows: self.follows,
            aggregate: self
                .aggregate
                .map(|Aggregate { count, names }| pb::DecisionAggregate { count, names }),
        }
    }
}

impl Seed {
    /// The seed of a log whose newest decisions are these, in any order. What a newer version recorded and this one does
    /// not know is skipped.
    pub fn of(mut decisions: Vec<pb::Decision>) -> Seed {
        decisions.sort_unstable_by_key(|decision| decision.id);
        let mut seed = Seed::default();
        for decision in &decisions {
            seed.continue_after(decision.id);
            if let Some(recorded) = recorded(decision) {
                seed.add(recorded);
            }
        }
        seed
    }
}

fn recorded(decision: &pb::Decision) -> Option<Recorded> {
    let rule = Rule::of_id(&decision.rule)?;
    let time = decision.time.as_ref()?;
    let at = Timestamp::new(time.seconds, time.nanos).ok()?;
    if decision.aggregate.is_some() || rule == Rule::HeartbeatGap {
        return None;
    }
    let state = match decision.state() {
        pb::DecisionState::Acted => DecisionState::Acted,
        pb::DecisionState::Waiting => DecisionState::Waiting,
        pb::DecisionState::Observed => DecisionState::Observed,
        pb::DecisionState::Unspecified => return None,
    };
    let result = decision.outcome.as_ref().and_then(|outcome| result_of(outcome.result()));
    let why = decision.outcome.as_ref().map_or("", |outcome| outcome.reason.as_str());
    let completed = decision.outcome.as_ref().and_then(|outcome| outcome.time.as_ref());
    let taints = decision.inputs.iter().find(|input| input.name == "taints");
    let times = decision.inputs.iter().filter(|input| input.unit == TIME);
    let times = times.map(|input| input.value.as_str());
    Some(Recorded {
        id: decision.id,
        at,
        subject: subject_of(decision.subject.as_ref()?)?,
        rule,
        result,
        completed_at: completed.and_then(|time| Timestamp::new(time.seconds, time.nanos).ok()),
        taints: taints.map(|input| input.value.clone()).unwrap_or_default(),
        fingerprint: fingerprint(&decision.rule, state, result, &decision.reason, why, times),
    })
}

fn subject_pb(subject: &DecisionSubject, uid: Option<Uid>) -> pb::DecisionSubject {
    use pb::DecisionSubjectKind as Kind;
    let (kind, namespace, name) = match subject {
        DecisionSubject::Node(name) => (Kind::Node, String::new(), name.to_string()),
        DecisionSubject::Pod(key) => (Kind::Pod, key.namespace_text(), key.name_text()),
        DecisionSubject::Zone(zone) => (Kind::Zone, String::new(), zone.to_string()),
        DecisionSubject::Fleet => (Kind::Fleet, String::new(), String::new()),
        DecisionSubject::Block(name) => (Kind::Block, String::new(), name.to_string()),
        DecisionSubject::Drain(name) => (Kind::Drain, String::new(), name.to_string()),
    };
    let uid = uid.map(|uid| uid.to_string()).unwrap_or_default();
    pb::DecisionSubject { kind: kind.into(), namespace, name, uid }
}

fn subject_of(subject: &pb::DecisionSubject) -> Option<DecisionSubject> {
    use pb::DecisionSubjectKind as Kind;
    let name = || subject.name.parse().ok();
    Some(match subject.kind() {
        Kind::Node => DecisionSubject::Node(name()?),
        Kind::Pod => DecisionSubject::Pod(Key::namespaced(subject.namespace.parse().ok()?, name()?)),
        Kind::Zone => {
            let (region, zone) = subject.name.split_once('/')?;
            DecisionSubject::Zone(ZoneKey { region: region.to_owned(), zone: zone.to_owned() })
        }
        Kind::Fleet => DecisionSubject::Fleet,
        Kind::Block => DecisionSubject::Block(name()?),
        Kind::Drain => DecisionSubject::Drain(name()?),
        Kind::Unspecified => return None,
    })
}

fn input(input: Input) -> pb::DecisionInput {
    let Input { name, value, threshold, unit } = input;
    pb::DecisionInput { name: name.to_owned(), value: shortened(value), threshold, unit: unit.to_owned() }
}

fn outcome(outcome: DecisionOutcome) -> pb::DecisionOutcome {
    let DecisionOutcome { result, revision, reason, at } = outcome;
    pb::DecisionOutcome {
        result: pb::DecisionResult::from(result).into(),
        revision,
        reason: shortened(reason),
        time: Some(timestamp(at)),
    }
}

/// A text that others wrote, such as the reason of a drain, may be long.
fn shortened(mut text: String) -> String {
    const LONGEST: usize = 1024;
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST));
        text.push_str("...");
    }
    text
}

fn result_of(result: pb::DecisionResult) -> Option<DecisionResult> {
    Some(match result {
        pb::DecisionResult::Unspecified => return None,
        pb::DecisionResult::Written => DecisionResult::Written,
        pb::DecisionResult::Conflict => DecisionResult::Conflict,
        pb::DecisionResult::Refused => DecisionResult::Refused,
        pb::DecisionResult::Superseded => DecisionResult::Superseded,
        pb::DecisionResult::Failed => DecisionResult::Failed,
        pb::DecisionResult::Unknown => DecisionResult::Unknown,
    })
}

impl From<DecisionState> for pb::DecisionState {
    fn from(state: DecisionState) -> pb::DecisionState {
        match state {
            DecisionState::Acted => pb::DecisionState::Acted,
            DecisionState::Waiting => pb::DecisionState::Waiting,
            DecisionState::Observed => pb::DecisionState::Observed,
        }
    }
}

impl From<DecisionResult> for pb::DecisionResult {
    fn from(result: DecisionResult) -> pb::DecisionResult {
        match result {
            DecisionResult::Written => pb::DecisionResult::Written,
            DecisionResult::Conflict => pb::DecisionResult::Conflict,
            DecisionResult::Refused => pb::DecisionResult::Refused,
            DecisionResult::Superseded => pb::DecisionResult::Superseded,
            DecisionResult::Failed => pb::DecisionResult::Failed,
            DecisionResult::Unknown => pb::DecisionResult::Unknown,
        }
    }
}

fn timestamp(at: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond().max(0) }
}

//! Decisions that exceed the budget of the log, summed up by zone and rule: one record stands for many.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_proto::time::Mono;

use super::{
    Aggregate, Decision, DecisionOutcome, DecisionResult, DecisionState, DecisionSubject, Rule, causes,
};
use crate::node_lifecycle::zone_state::ZoneKey;
use crate::plan::ControllerName;

/// How often they are recorded.
const PERIOD: Duration = Duration::from_secs(1);
/// Names of subjects in a record.
const NAMES: usize = 10;

/// By zone, and by what is the same for all of them.
type SumKey = (Option<ZoneKey>, ControllerName, Rule, DecisionState, Option<DecisionResult>);

#[derive(Debug)]
struct Sum {
    decision: Decision,
    aggregate: Aggregate,
}

#[derive(Debug, Default)]
pub(super) struct Sums {
    sums: BTreeMap<SumKey, Sum>,
    next: Option<Mono>,
}

impl Sums {
    pub(super) fn add(&mut self, decision: Decision, now: Mono) {
        self.next.get_or_insert(now + PERIOD);
        let result = decision.outcome.as_ref().map(|outcome| outcome.result);
        let rule = decision.cause.rule;
        let key = (decision.zone.clone(), decision.controller, rule, decision.state, result);
        let name = name_of(&decision.subject);
        let sum = self.sums.entry(key).or_insert_with(|| Sum {
            decision: Decision {
                subject: decision.zone.clone().map_or(DecisionSubject::Fleet, DecisionSubject::Zone),
                uid: None,
                node: None,
                outcome: decision.outcome.clone().map(|outcome| DecisionOutcome { revision: 0, ..outcome }),
                cause: causes::summed(rule),
                trace_id: String::new(),
                ..decision
            },
            aggregate: Aggregate::default(),
        });
        sum.aggregate.count += 1;
        if sum.aggregate.names.len() < NAMES {
            sum.aggregate.names.push(name);
        }
    }

    /// Takes what is to be recorded now, still without numbers.
    pub(super) fn take(&mut self, now: Mono) -> Vec<Decision> {
        if self.next.is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.next = None;
        let sums = std::mem::take(&mut self.sums).into_values();
        sums.map(|Sum { decision, aggregate }| Decision { aggregate: Some(aggregate), ..decision }).collect()
    }

    /// When there is something to record.
    pub(super) fn next(&self) -> Option<Mono> {
        self.next
    }
}

fn name_of(subject: &DecisionSubject) -> String {
    match subject {
        DecisionSubject::Node(name) | DecisionSubject::Block(name) | DecisionSubject::Drain(name) => {
            name.to_string()
        }
        DecisionSubject::Pod(key) => key.to_string(),
        DecisionSubject::Zone(zone) => zone.to_string(),
        DecisionSubject::Fleet => String::new(),
    }
}

//! Which decisions a list or a watch asks for, and how a batch of new ones has to follow the log.

use muster_proto::invalid::{Check, Invalid, Path};
use muster_proto::pb;

/// The largest batch of new decisions.
pub const MAX_BATCH: usize = 1000;
/// The rule of a record in place of decisions that are lost: the only one that may have a gap before it.
const DECISIONS_LOST: &str = "decisions-lost";
/// The longest text of a decision, in bytes.
const MAX_TEXT: usize = 4096;
/// The most inputs of a decision.
const MAX_INPUTS: usize = 64;

/// A checked filter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DecisionFilter {
    wanted: pb::DecisionFilter,
    /// Microseconds since 1970.
    pub since: Option<i64>,
    pub until: Option<i64>,
}

impl TryFrom<pb::DecisionFilter> for DecisionFilter {
    type Error = Invalid;

    fn try_from(wanted: pb::DecisionFilter) -> Result<Self, Invalid> {
        let mut check = Check::new();
        let root = Path::ROOT.key("filter");
        let known = pb::DecisionSubjectKind::try_from(wanted.subject_kind).is_ok();
        check.ensure(&root.key("subjectKind"), known, "is no kind of subject");
        let (since, until) = (wanted.since.as_ref().map(micros), wanted.until.as_ref().map(micros));
        let is_range = since.zip(until).is_none_or(|(since, until)| since <= until);
        check.ensure(&root.key("until"), is_range, "must not be before since");
        check.finish(DecisionFilter { wanted, since, until })
    }
}

impl DecisionFilter {
    pub fn matches(&self, decision: &pb::Decision) -> bool {
        let at = time_of(decision);
        let subject = decision.subject.clone().unwrap_or_default();
        let pb::DecisionFilter { subject_kind, namespace, name, node, zone, rule, .. } = &self.wanted;
        let is = |wanted: &str, found: &str| wanted.is_empty() || wanted == found;
        self.since.is_none_or(|since| at >= since)
            && self.until.is_none_or(|until| at < until)
            && (*subject_kind == 0 || *subject_kind == subject.kind)
            && is(namespace, &subject.namespace)
            && is(name, &subject.name)
            && is(node, &decision.node)
            && is(zone, &decision.zone)
            && is(rule, &decision.rule)
    }

    /// The terms that every decision that matches has, for an index.
    pub fn terms(&self) -> Vec<u64> {
        let pb::DecisionFilter { name, node, zone, rule, .. } = &self.wanted;
        [('s', name), ('n', node), ('z', zone), ('r', rule)]
            .into_iter()
            .filter(|(_, text)| !text.is_empty())
            .map(|(kind, text)| term(kind, text))
            .collect()
    }
}

/// The terms by which an index finds a decision.
pub fn terms_of(decision: &pb::Decision) -> [u64; 4] {
    let name = decision.subject.as_ref().map_or("", |subject| subject.name.as_str());
    [term('s', name), term('n', &decision.node), term('z', &decision.zone), term('r', &decision.rule)]
}

/// FNV-1a: the same in every version, because indexes are kept on disk.
fn term(kind: char, text: &str) -> u64 {
    let bytes = [kind as u8].into_iter().chain(text.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// When it was made, in microseconds since 1970.
pub fn time_of(decision: &pb::Decision) -> i64 {
    decision.time.as_ref().map_or(0, micros)
}

fn micros(time: &prost_types::Timestamp) -> i64 {
    time.seconds.saturating_mul(1_000_000).saturating_add(i64::from(time.nanos / 1000))
}

/// The end of the log, as a batch of new decisions has to follow it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogEnd {
    /// 0 if the log is empty.
    pub last_id: u64,
    /// Who recorded the last one, in which term.
    pub leader: String,
    pub term: u64,
}

/// Why a batch does not follow the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    #[error("the log ends with decision {last_id}, and the batch begins with {first}: one is missing")]
    Gap { last_id: u64, first: u64 },
    #[error(
        "the log ends with decision {last_id} of {leader}, and the batch has {first} of another leader: two controllers \
         record at once"
    )]
    OtherLeader { last_id: u64, leader: String, first: u64 },
}

/// Checks the decisions of a batch by themselves.
///
/// # Errors
/// With the field of each that is not valid.
pub fn check_batch(decisions: &[pb::Decision]) -> Result<(), Invalid> {
    let mut check = Check::new();
    let root = Path::ROOT.key("decisions");
    check.ensure(&root, !decisions.is_empty(), "must not be empty");
    check.ensure(&root, decisions.len() <= MAX_BATCH, format!("must be at most {MAX_BATCH}"));
    let mut before = None;
    for (index, decision) in decisions.iter().take(MAX_BATCH).enumerate() {
        let at = root.index(index);
        let follows = before.is_none_or(|before: u64| {
            before.checked_add(1) == Some(decision.id) || (is_after_gap(decision) && decision.id > before)
        });
        check.ensure(&at.key("id"), decision.id > 0, "must be greater than 0");
        check.ensure(&at.key("id"), follows, "must follow the one before without a gap");
        check.ensure(&at.key("time"), decision.time.is_some(), "must be given");
        check.ensure(&at.key("rule"), !decision.rule.is_empty(), "must be given");
        check.ensure(&at.key("subject"), decision.subject.is_some(), "must be given");
        check.ensure(
            &at.key("follows"),
            decision.follows < decision.id.max(1),
            "must be an earlier decision",
        );
        let texts =
            [&decision.reason, &decision.action, &decision.rule, &decision.leader, &decision.trace_id];
        let is_short = texts.iter().all(|text| text.len() <= MAX_TEXT);
        check.ensure(&at, is_short, format!("must have no text of more than {MAX_TEXT} bytes"));
        check.ensure(
            &at.key("inputs"),
            decision.inputs.len() <= MAX_INPUTS,
            format!("must be at most {MAX_INPUTS}"),
        );
        before = Some(decision.id);
    }
    check.finish(())
}

/// Whether it says that the decisions before it are lost.
fn is_after_gap(decision: &pb::Decision) -> bool {
    decision.rule == DECISIONS_LOST
}

/// How many decisions of a checked batch the log has already: it is sent again when its answer was lost.
///
/// # Errors
/// When the rest does not follow the log.
pub fn already_recorded(end: &LogEnd, batch: &[pb::Decision]) -> Result<usize, OrderError> {
    let Some(first) = batch.first().filter(|_| end.last_id > 0) else { return Ok(0) };
    let last_id = end.last_id;
    if first.id > last_id + 1 && !is_after_gap(first) {
        return Err(OrderError::Gap { last_id, first: first.id });
    }
    let known = batch.iter().take_while(|decision| decision.id <= last_id).count();
    if known > 0 && (first.leader != end.leader || first.term != end.term) {
        return Err(OrderError::OtherLeader { last_id, leader: end.leader.clone(), first: first.id });
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(id: u64) -> pb::Decision {
        pb::Decision {
            id,
            time: Some(prost_types::Timestamp { seconds: 100 + id as i64, nanos: 0 }),
            leader: "a".to_owned(),
            term: 1,
            subject: Some(pb::DecisionSubject {
                kind: pb::DecisionSubjectKind::Pod.into(),
                namespace: "default".to_owned(),
                name: "p".to_owned(),
                uid: String::new(),
            }),
            node: "n".to_owned(),
            zone: "r/z".to_owned(),
            rule: "toleration-over".to_owned(),
            ..pb::Decision::default()
        }
    }

    #[test]
    fn each_field_of_a_filter_restricts() {
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let any = pb::DecisionFilter::default;
        for (filter, expected) in [
            (any(), true),
            (pb::DecisionFilter { name: "p".into(), node: "n".into(), zone: "r/z".into(), ..any() }, true),
            (pb::DecisionFilter { subject_kind: 2, namespace: "default".into(), ..any() }, true),
            (pb::DecisionFilter { rule: "toleration-over".into(), ..any() }, true),
            (pb::DecisionFilter { since: at(107), until: at(108), ..any() }, true),
            (pb::DecisionFilter { since: at(108), ..any() }, false),
            (pb::DecisionFilter { until: at(107), ..any() }, false),
            (pb::DecisionFilter { subject_kind: 1, ..any() }, false),
            (pb::DecisionFilter { namespace: "x".into(), ..any() }, false),
            (pb::DecisionFilter { name: "q".into(), ..any() }, false),
            (pb::DecisionFilter { node: "m".into(), ..any() }, false),
            (pb::DecisionFilter { zone: "r/y".into(), ..any() }, false),
            (pb::DecisionFilter { rule: "node-ready".into(), ..any() }, false),
        ] {
            let checked = DecisionFilter::try_from(filter.clone()).unwrap();
            assert_eq!(checked.matches(&decision(7)), expected, "{filter:?}");
            let terms = terms_of(&decision(7));
            if expected {
                assert!(checked.terms().iter().all(|term| terms.contains(term)), "{filter:?}");
            }
        }
        let backwards = pb::DecisionFilter { since: at(2), until: at(1), ..any() };
        let error = DecisionFilter::try_from(backwards).unwrap_err().to_string();
        assert!(error.contains("filter.until: must not be before since"), "{error}");
    }

    #[test]
    fn a_batch_follows_the_log_and_may_be_sent_again() {
        let end = LogEnd { last_id: 5, leader: "a".to_owned(), term: 1 };
        let batch = |ids: std::ops::RangeInclusive<u64>| ids.map(decision).collect::<Vec<_>>();
        for (ids, expected) in [
            (6..=8, Ok(0)),
            (4..=8, Ok(2)),
            (4..=5, Ok(2)),
            (3..=4, Ok(2)),
            (7..=8, Err(OrderError::Gap { last_id: 5, first: 7 })),
        ] {
            assert_eq!(already_recorded(&end, &batch(ids.clone())), expected, "{ids:?}");
        }
        assert_eq!(
            already_recorded(&LogEnd::default(), &batch(40..=41)),
            Ok(0),
            "an empty log begins anywhere"
        );
        let lost = pb::Decision { rule: DECISIONS_LOST.to_owned(), ..decision(9) };
        assert_eq!(already_recorded(&end, std::slice::from_ref(&lost)), Ok(0), "a gap that is explained");
        assert_eq!(check_batch(&[decision(6), lost]), Ok(()));
        let other = LogEnd { leader: "b".to_owned(), ..end };
        let refused = already_recorded(&other, &batch(5..=6));
        assert_eq!(refused, Err(OrderError::OtherLeader { last_id: 5, leader: "b".to_owned(), first: 5 }));
        assert_eq!(already_recorded(&other, &batch(6..=6)), Ok(0));
    }

    #[test]
    fn a_batch_is_checked_by_itself() {
        assert_eq!(check_batch(&[decision(1), decision(2)]), Ok(()));
        let invalid = |batch: &[pb::Decision]| check_batch(batch).unwrap_err().to_string();
        for (batch, expected) in [
            (vec![], "decisions: must not be empty"),
            (vec![decision(1), decision(3)], "decisions[1].id: must follow the one before"),
            (vec![decision(0)], "decisions[0].id: must be greater than 0"),
            (vec![pb::Decision { time: None, ..decision(1) }], "decisions[0].time: must be given"),
            (vec![pb::Decision { follows: 1, ..decision(1) }], "decisions[0].follows: must be an earlier"),
            (vec![pb::Decision { reason: "x".repeat(5000), ..decision(1) }], "no text of more than"),
            ((1..=1001).map(decision).collect(), "decisions: must be at most 1000"),
        ] {
            assert!(invalid(&batch).contains(expected), "{}", invalid(&batch));
        }
    }
}

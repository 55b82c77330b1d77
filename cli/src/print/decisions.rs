//! Decisions for people: as a table, and as the history of what happened to a node, a pod or a zone.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use muster_proto::pb;

use super::rows::pod_status::moment;
use super::wrap::wrap;
use super::{Cell, Paint, Table};

/// The columns of a table of decisions.
pub(crate) const HEADERS: [&str; 6] = ["ID", "TIME", "SUBJECT", "RULE", "RESULT", "WHY"];

/// Times in the zone of the reader; with the date if it is not today's.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    pub(crate) now: Timestamp,
    pub(crate) zone: TimeZone,
}

impl Clock {
    pub(crate) fn time(&self, at: Timestamp) -> String {
        let (here, now) = (at.to_zoned(self.zone.clone()), self.now.to_zoned(self.zone.clone()));
        let time =
            format!("{:02}:{:02}:{:02}.{:03}", here.hour(), here.minute(), here.second(), here.millisecond());
        if here.date() == now.date() { time } else { format!("{} {time}", here.date()) }
    }

    fn of(&self, decision: &pb::Decision) -> String {
        moment(decision.time.as_ref()).map(|at| self.time(at)).unwrap_or_default()
    }
}

/// A row of the table.
pub(crate) fn row(decision: &pb::Decision, clock: &Clock) -> [Cell; 6] {
    let result = Cell::new(result_word(decision));
    let result = match decision.outcome.as_ref().map(pb::DecisionOutcome::result) {
        Some(pb::DecisionResult::Written) => result.good(),
        Some(_) => result.bad(),
        None => result.doubtful(),
    };
    [
        Cell::new(decision.id.to_string()),
        Cell::new(clock.of(decision)),
        Cell::new(subject(decision)),
        Cell::new(&decision.rule),
        result,
        Cell::new(why(decision)),
    ]
}

/// A table of decisions in their order.
pub(crate) fn table(decisions: &[pb::Decision], clock: &Clock, paint: Paint, width: usize) -> String {
    let mut table = Table::new(HEADERS);
    decisions.iter().for_each(|decision| table.push(row(decision, clock)));
    table.take_within(paint, width)
}

/// What happened, decision by decision: what was seen or decided, what came of it, and where that is recorded.
pub(crate) fn history(decisions: &[pb::Decision], about: &str, clock: &Clock, width: usize) -> String {
    let times: Vec<String> = decisions.iter().map(|decision| clock.of(decision)).collect();
    let indent = times.iter().map(String::len).max().unwrap_or(0) + 2;
    let columns = width.saturating_sub(indent).max(20);
    let mut page = String::new();
    for (decision, time) in decisions.iter().zip(&times) {
        let name = subject(decision);
        let name_of_other = if name == about { String::new() } else { format!("{name}: ") };
        for (index, line) in wrap(&format!("{name_of_other}{}", why(decision)), columns).iter().enumerate() {
            let time = if index == 0 { time.as_str() } else { "" };
            page.push_str(&format!("{time:indent$}{line}\n"));
        }
        for line in wrap(&consequence(decision), columns) {
            page.push_str(&format!("{:indent$}{line}\n", ""));
        }
    }
    page
}

/// What came of a decision, its rule, and where to look further.
fn consequence(decision: &pb::Decision) -> String {
    let mut text = match (decision.state(), &decision.outcome) {
        (pb::DecisionState::Waiting, _) => "Nothing is done yet.".to_owned(),
        (pb::DecisionState::Observed, _) => "Noted.".to_owned(),
        (_, Some(outcome)) => {
            let action = capitalized(&decision.action);
            let reason =
                if outcome.reason.is_empty() { String::new() } else { format!(": {}", outcome.reason) };
            match outcome.result() {
                pb::DecisionResult::Written => {
                    format!("{action}: done, version {}{}.", outcome.revision, parenthesized(&outcome.reason))
                }
                pb::DecisionResult::Conflict => format!("{action}: not done{reason}; it is judged again."),
                pb::DecisionResult::Refused => format!("{action}: refused{reason}."),
                pb::DecisionResult::Superseded => format!("{action}: not needed any more{reason}."),
                pb::DecisionResult::Failed => format!("{action}: failed and is tried again{reason}."),
                pb::DecisionResult::Unknown | pb::DecisionResult::Unspecified => {
                    format!("{action}: it is not known whether it was done{reason}.")
                }
            }
        }
        (_, None) => String::new(),
    };
    let mut marks = vec![format!("#{}", decision.id), decision.rule.clone()];
    if decision.follows > 0 {
        marks.push(format!("follows from #{}", decision.follows));
    }
    if !decision.trace_id.is_empty() {
        marks.push(format!("trace {}", decision.trace_id));
    }
    text.push_str(&format!(" [{}]", marks.join(", ")));
    text
}

/// The reason, with the inputs that were held against a threshold.
fn why(decision: &pb::Decision) -> String {
    match &decision.aggregate {
        Some(aggregate) => format!(
            "{} decisions at once, about {} and others.",
            aggregate.count,
            aggregate.names.first().map_or("", String::as_str)
        ),
        None => decision.reason.clone(),
    }
}

/// `node n7`, `pod default/p`, `zone r/z`, `fleet`.
pub(crate) fn subject(decision: &pb::Decision) -> String {
    let Some(subject) = &decision.subject else { return String::new() };
    let pb::DecisionSubject { namespace, name, .. } = subject;
    match subject.kind() {
        pb::DecisionSubjectKind::Node => format!("node {name}"),
        pb::DecisionSubjectKind::Pod => format!("pod {namespace}/{name}"),
        pb::DecisionSubjectKind::Zone => format!("zone {name}"),
        pb::DecisionSubjectKind::Fleet => "fleet".to_owned(),
        pb::DecisionSubjectKind::Block => format!("blocks of {name}"),
        pb::DecisionSubjectKind::Drain => format!("drain of {name}"),
        pb::DecisionSubjectKind::Unspecified => name.clone(),
    }
}

fn result_word(decision: &pb::Decision) -> &'static str {
    match decision.outcome.as_ref().map(pb::DecisionOutcome::result) {
        Some(pb::DecisionResult::Written) => "done",
        Some(pb::DecisionResult::Conflict) => "conflict",
        Some(pb::DecisionResult::Refused) => "refused",
        Some(pb::DecisionResult::Superseded) => "superseded",
        Some(pb::DecisionResult::Failed) => "failed",
        Some(pb::DecisionResult::Unknown | pb::DecisionResult::Unspecified) => "unknown",
        None if decision.state() == pb::DecisionState::Waiting => "waits",
        None => "seen",
    }
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(|| "Action".to_owned(), |first| first.to_uppercase().chain(letters).collect())
}

fn parenthesized(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" ({text})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(id: u64, rule: &str, reason: &str) -> pb::Decision {
        pb::Decision {
            id,
            time: Some(prost_types::Timestamp { seconds: 1_700_000_000 + id as i64, nanos: 250_000_000 }),
            subject: Some(pb::DecisionSubject {
                kind: pb::DecisionSubjectKind::Node.into(),
                name: "n7".to_owned(),
                ..Default::default()
            }),
            rule: rule.to_owned(),
            reason: reason.to_owned(),
            state: pb::DecisionState::Acted.into(),
            action: "update the node's status".to_owned(),
            ..Default::default()
        }
    }

    fn written(mut decision: pb::Decision) -> pb::Decision {
        let result = pb::DecisionResult::Written.into();
        decision.outcome = Some(pb::DecisionOutcome { result, revision: 812, ..Default::default() });
        decision
    }

    fn clock() -> Clock {
        Clock { now: Timestamp::from_second(1_700_000_100).unwrap(), zone: TimeZone::UTC }
    }

    #[test]
    fn a_history_says_what_was_seen_what_came_of_it_and_where_it_is_recorded() {
        let mut waits = decision(2, "zone-eviction-rate", "The node waits in the queue of its zone.");
        waits.state = pb::DecisionState::Waiting.into();
        waits.follows = 1;
        let mut zone = decision(3, "zone-state", "The zone is in FullDisruption.");
        zone.state = pb::DecisionState::Observed.into();
        zone.subject = Some(pb::DecisionSubject { kind: 3, name: "r/z".to_owned(), ..Default::default() });
        let mut refused = decision(4, "drain-eviction", "The node is being drained.");
        refused.outcome = Some(pb::DecisionOutcome {
            result: pb::DecisionResult::Refused.into(),
            reason: "the budget web".to_owned(),
            ..Default::default()
        });
        let mut first = written(decision(1, "grace-period-passed", "No sign of life for 50.1 s."));
        first.trace_id = "4bf9".to_owned();
        let page = history(&[first, waits, zone, refused], "node n7", &clock(), 200);
        assert_eq!(
            page,
            "22:13:21.250  No sign of life for 50.1 s.\n\
             \x20             Update the node's status: done, version 812. [#1, grace-period-passed, trace 4bf9]\n\
             22:13:22.250  The node waits in the queue of its zone.\n\
             \x20             Nothing is done yet. [#2, zone-eviction-rate, follows from #1]\n\
             22:13:23.250  zone r/z: The zone is in FullDisruption.\n\
             \x20             Noted. [#3, zone-state]\n\
             22:13:24.250  The node is being drained.\n\
             \x20             Update the node's status: refused: the budget web. [#4, drain-eviction]\n"
        );
    }

    #[test]
    fn a_table_has_a_row_for_each_decision() {
        let mut sum = decision(5, "grace-period-passed", "More decisions.");
        let names = vec!["n1".to_owned()];
        sum.aggregate = Some(pb::DecisionAggregate { count: 90_000, names });
        let page = table(
            &[written(decision(1, "node-labels", "Why.")), written(sum)],
            &clock(),
            Paint::Plain,
            usize::MAX,
        );
        let lines: Vec<Vec<&str>> = page.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], HEADERS);
        assert_eq!(lines[1], ["1", "22:13:21.250", "node", "n7", "node-labels", "done", "Why."]);
        assert!(page.contains("90000 decisions at once, about n1 and others."), "{page}");
    }

    #[test]
    fn another_day_has_its_date() {
        let clock = clock();
        let yesterday = Timestamp::from_second(1_700_000_000 - 86_400).unwrap();
        assert_eq!(clock.time(yesterday), "2023-11-13 22:13:20.000");
    }
}

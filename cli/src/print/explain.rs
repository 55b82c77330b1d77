//! The pages of `muster explain`: why a node or a pod is in its state, and what the controller will do next.

use jiff::Timestamp;
use muster_proto::pb;

use super::fleet::{duration, eta, rate, zone_state};
use super::rows::or_none;
use super::rows::pod_status::moment;
use super::table::Table;
use super::wrap::paragraph;
use super::{Cell, NONE, Paint, Word, age};

/// The page of a node. Ages are relative to the controller's clock.
pub(crate) fn explanation(response: &pb::ExplainNodeResponse, paint: Paint, width: usize) -> String {
    let now = moment(response.as_of.as_ref());
    let mut page = String::new();
    let mut head = Table::without_headers();
    head.push(["Node".to_owned(), response.name.clone()]);
    let ready = Cell::new(if response.ready.is_empty() { "never reported" } else { &response.ready });
    head.push([Cell::new("Ready"), if response.ready == "True" { ready.good() } else { ready.bad() }]);
    if let Some(silence) = &response.silence {
        head.push(["Last seen".to_owned(), last_seen(silence, now)]);
    }
    if let Some(zone) = &response.zone {
        for (label, cell) in of_zone(zone, response) {
            head.push([Cell::new(label), cell]);
        }
    }
    if response.queue_position > 0 {
        head.push(["Queue".to_owned(), queue_position(response)]);
    }
    if !response.summary.is_empty() {
        page.push_str(&format!("{}\n", paragraph(&response.summary, width)));
    }
    page.push_str(&head.take_within(paint, width));
    page.push_str(&explanations(&response.explanations, now, paint, width));
    page.push_str(&pods(&response.pods, now, paint, width));
    page
}

/// The node's place in the queue, and when its turn comes if the rate stays.
fn queue_position(response: &pb::ExplainNodeResponse) -> String {
    let position = response.queue_position;
    let rate = response.zone.as_ref().map_or(0.0, |zone| zone.rate);
    let eta = eta(position, rate).map(|eta| format!(", about {} at this rate", age::short(eta)));
    format!("position {position} for the NoExecute taint{}", eta.unwrap_or_default())
}

/// The page of a pod.
pub(crate) fn pod_explanation(response: &pb::ExplainPodResponse, paint: Paint, width: usize) -> String {
    let now = moment(response.as_of.as_ref());
    let mut page = String::new();
    if !response.summary.is_empty() {
        page.push_str(&format!("{}\n", paragraph(&response.summary, width)));
    }
    let mut head = Table::without_headers();
    head.push(["Pod".to_owned(), format!("{}/{}", response.namespace, response.name)]);
    head.push(["Node".to_owned(), or_none(&response.node_name).to_owned()]);
    page.push_str(&head.take_within(paint, width));
    page.push_str(&explanations(&response.explanations, now, paint, width));
    page.push_str(&obstacles(&response.obstacles, paint, width));
    if let Some(eviction) = &response.eviction {
        page.push_str(&pods(std::slice::from_ref(eviction), now, paint, width));
    }
    page
}

fn obstacles(obstacles: &[pb::PodObstacle], paint: Paint, width: usize) -> String {
    if obstacles.is_empty() {
        return String::new();
    }
    let mut table = Table::new(["NODES", "WHY"]);
    for it in obstacles {
        table.push([it.nodes.to_string(), it.reason.clone()]);
    }
    format!("\n{}", table.take_within(paint, width))
}

fn last_seen(silence: &pb::NodeSilence, now: Option<Timestamp>) -> String {
    let by = match silence.seen_by() {
        pb::SignOfLife::Unspecified => String::new(),
        sign => format!(" ({})", sign.word()),
    };
    let ago = silence.silent_for.as_ref().map(|silent| format!("{} ago", age::short(duration(silent))));
    let grace = silence.grace.as_ref().map(|grace| format!(", grace period {}", age::short(duration(grace))));
    let deadline = moment(silence.deadline.as_ref()).zip(now).map(|(deadline, now)| {
        if deadline > now {
            format!(", Unknown in {}", age::until(deadline, now))
        } else {
            format!(", overdue for {}", age::since(Some(deadline), now))
        }
    });
    let ago = ago.unwrap_or_else(|| "at an unknown time".to_owned());
    format!("{ago}{by}{}{}", grace.unwrap_or_default(), deadline.unwrap_or_default())
}

fn of_zone(zone: &pb::FleetZone, response: &pb::ExplainNodeResponse) -> Vec<(&'static str, Cell)> {
    let name = or_none(&zone.name);
    let counted = if response.excluded { "; this node is excluded from the count" } else { "" };
    let mut rows = vec![
        ("Zone", Cell::new(format!("{name}: {} of {} nodes unhealthy{counted}", zone.unhealthy, zone.nodes))),
        ("Zone state", zone_state(zone.state())),
        ("Zone rate", Cell::new(format!("{}, {} in its queue", rate(zone.rate), zone.queue_length))),
    ];
    let reason = sentences_not_in(&zone.reason, &response.summary);
    if !reason.is_empty() {
        rows.push(("Zone reason", Cell::new(reason)));
    }
    rows
}

/// The sentences of a text that another one does not have: what is above need not be read twice.
fn sentences_not_in(text: &str, other: &str) -> String {
    let sentences = text.split_inclusive(". ").filter(|sentence| !other.contains(sentence.trim_end()));
    sentences.collect::<String>().trim_end().to_owned()
}

fn explanations(
    explanations: &[pb::Explanation],
    now: Option<Timestamp>,
    paint: Paint,
    width: usize,
) -> String {
    if explanations.is_empty() {
        return String::new();
    }
    let table = |with_inputs: bool| {
        let headers = ["ACTION", "STATE", "EARLIEST", "WHY", "FROM"];
        let mut table = Table::new(if with_inputs { &headers[..] } else { &headers[..4] }.iter().copied());
        for it in explanations {
            let state = Cell::new(or_none(&it.state().word()));
            let mut row = vec![
                Cell::new(it.action().word()),
                match it.state() {
                    pb::ExplanationState::Done | pb::ExplanationState::None => state,
                    pb::ExplanationState::Refused | pb::ExplanationState::Paused => state.bad(),
                    _ => state.doubtful(),
                },
                Cell::new(when(it.earliest.as_ref(), now)),
                Cell::new(with_decision(&it.reason, it.decision_id)),
            ];
            if with_inputs {
                let inputs = it.inputs.iter().map(|(name, value)| format!("{name}={value}"));
                row.push(Cell::new(inputs.collect::<Vec<_>>().join(" ")));
            }
            table.push(row);
        }
        table
    };
    let has_inputs = explanations.iter().any(|it| !it.inputs.is_empty());
    let mut table = if has_inputs { widest_that_fits(table, width) } else { table(false) };
    format!("\n{}", table.take_within(paint, width))
}

fn pods(pods: &[pb::PodExplanation], now: Option<Timestamp>, paint: Paint, width: usize) -> String {
    if pods.is_empty() {
        return format!("\nPods: {NONE}\n");
    }
    let table = |with_taints: bool| {
        let more: &[&str] = if with_taints { &["TAINT", "TOLERATION"] } else { &[] };
        let headers = ["POD", "DECISION", "EARLIEST"].iter().chain(more).chain(&["WHY"]).copied();
        let mut table = Table::new(headers);
        for pod in pods {
            let decision = Cell::new(or_none(&pod.decision().word()));
            let is_kept = pod.decision() == pb::EvictionDecision::Keep;
            let mut row = vec![
                Cell::new(format!("{}/{}", pod.namespace, pod.name)),
                if is_kept { decision.good() } else { decision.doubtful() },
                Cell::new(when(pod.earliest_eviction.as_ref(), now)),
            ];
            if with_taints {
                row.push(Cell::new(pod.taint.as_ref().map_or_else(|| "-".to_owned(), taint)));
                row.push(Cell::new(pod.toleration.as_ref().map_or_else(|| "-".to_owned(), toleration)));
            }
            row.push(Cell::new(with_decision(&pod.reason, pod.decision_id)));
            table.push(row);
        }
        table
    };
    format!("\n{}", widest_that_fits(table, width).take_within(paint, width))
}

/// The table with all columns, or without those that only repeat in figures what the reason says, if they do not fit.
fn widest_that_fits(table: impl Fn(bool) -> Table, width: usize) -> Table {
    let full = table(true);
    if full.width() <= width { full } else { table(false) }
}

/// The time until a moment, or `now` if it has passed.
fn when(time: Option<&prost_types::Timestamp>, now: Option<Timestamp>) -> String {
    match (moment(time), now) {
        (Some(time), Some(now)) if time > now => format!("in {}", age::until(time, now)),
        (Some(_), Some(_)) => "now".to_owned(),
        (Some(time), None) => age::moment(time),
        (None, _) => "-".to_owned(),
    }
}

/// The reason, with the number of the decision that it follows from, for `muster why`.
fn with_decision(reason: &str, decision: u64) -> String {
    if decision == 0 { reason.to_owned() } else { format!("{reason} [#{decision}]") }
}

fn taint(taint: &pb::Taint) -> String {
    let value = if taint.value.is_empty() { String::new() } else { format!("={}", taint.value) };
    format!("{}{value}:{}", taint.key, taint.effect)
}

fn toleration(toleration: &pb::Toleration) -> String {
    let time = toleration.toleration_seconds;
    let time = time.map_or_else(|| "without limit".to_owned(), |seconds| format!("for {seconds}s"));
    let key = if toleration.key.is_empty() { "any key" } else { &toleration.key };
    format!("{key} {time}")
}

#[cfg(test)]
mod tests;

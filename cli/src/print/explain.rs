//! The pages of `muster explain`: why a node or a pod is in its state, and what the controller will do next.

use jiff::Timestamp;
use muster_proto::pb;

use super::fleet::{duration, rate, zone_state};
use super::rows::or_none;
use super::rows::pod_status::moment;
use super::table::Table;
use super::{Cell, NONE, Paint, Word, age};

/// The page of a node. Ages are relative to the controller's clock.
pub(crate) fn explanation(response: &pb::ExplainNodeResponse, paint: Paint) -> String {
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
        for (label, cell) in of_zone(zone, response.excluded) {
            head.push([Cell::new(label), cell]);
        }
    }
    if response.queue_position > 0 {
        head.push([
            "Queue".to_owned(),
            format!("position {} for the NoExecute taint", response.queue_position),
        ]);
    }
    if !response.summary.is_empty() {
        page.push_str(&format!("{}\n\n", response.summary.trim()));
    }
    page.push_str(&head.take(paint));
    page.push_str(&explanations(&response.explanations, now, paint));
    page.push_str(&pods(&response.pods, now, paint));
    page
}

/// The page of a pod.
pub(crate) fn pod_explanation(response: &pb::ExplainPodResponse, paint: Paint) -> String {
    let now = moment(response.as_of.as_ref());
    let mut page = String::new();
    if !response.summary.is_empty() {
        page.push_str(&format!("{}\n\n", response.summary.trim()));
    }
    let mut head = Table::without_headers();
    head.push(["Pod".to_owned(), format!("{}/{}", response.namespace, response.name)]);
    head.push(["Node".to_owned(), or_none(&response.node_name).to_owned()]);
    page.push_str(&head.take(paint));
    page.push_str(&explanations(&response.explanations, now, paint));
    page.push_str(&obstacles(&response.obstacles, paint));
    if let Some(eviction) = &response.eviction {
        page.push_str(&pods(std::slice::from_ref(eviction), now, paint));
    }
    page
}

fn obstacles(obstacles: &[pb::PodObstacle], paint: Paint) -> String {
    if obstacles.is_empty() {
        return String::new();
    }
    let mut table = Table::new(["NODES", "WHY"]);
    for it in obstacles {
        table.push([it.nodes.to_string(), it.reason.clone()]);
    }
    format!("\n{}", table.take(paint))
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

fn of_zone(zone: &pb::FleetZone, excluded: bool) -> Vec<(&'static str, Cell)> {
    let name = or_none(&zone.name);
    let counted = if excluded { "; this node is excluded from the count" } else { "" };
    let mut rows = vec![
        ("Zone", Cell::new(format!("{name}: {} of {} nodes unhealthy{counted}", zone.unhealthy, zone.nodes))),
        ("Zone state", zone_state(zone.state())),
        ("Zone rate", Cell::new(format!("{}, {} in its queue", rate(zone.rate), zone.queue_length))),
    ];
    if !zone.reason.is_empty() {
        rows.push(("Zone reason", Cell::new(&zone.reason)));
    }
    rows
}

fn explanations(explanations: &[pb::Explanation], now: Option<Timestamp>, paint: Paint) -> String {
    if explanations.is_empty() {
        return String::new();
    }
    let mut table = Table::new(["ACTION", "STATE", "EARLIEST", "WHY", "FROM"]);
    for it in explanations {
        let inputs: Vec<String> = it.inputs.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let state = Cell::new(or_none(&it.state().word()));
        table.push([
            Cell::new(it.action().word()),
            match it.state() {
                pb::ExplanationState::Done | pb::ExplanationState::None => state,
                pb::ExplanationState::Refused | pb::ExplanationState::Paused => state.bad(),
                _ => state.doubtful(),
            },
            Cell::new(when(it.earliest.as_ref(), now)),
            Cell::new(&it.reason),
            Cell::new(inputs.join(" ")),
        ]);
    }
    format!("\n{}", table.take(paint))
}

fn pods(pods: &[pb::PodExplanation], now: Option<Timestamp>, paint: Paint) -> String {
    if pods.is_empty() {
        return format!("\nPods: {NONE}\n");
    }
    let mut table = Table::new(["POD", "DECISION", "EARLIEST", "TAINT", "TOLERATION", "WHY"]);
    for pod in pods {
        let decision = Cell::new(or_none(&pod.decision().word()));
        table.push([
            Cell::new(format!("{}/{}", pod.namespace, pod.name)),
            if pod.decision() == pb::EvictionDecision::Keep { decision.good() } else { decision.doubtful() },
            Cell::new(when(pod.earliest_eviction.as_ref(), now)),
            Cell::new(pod.taint.as_ref().map_or_else(|| "-".to_owned(), taint)),
            Cell::new(pod.toleration.as_ref().map_or_else(|| "-".to_owned(), toleration)),
            Cell::new(&pod.reason),
        ]);
    }
    format!("\n{}", table.take(paint))
}

/// The time until a moment, or `now` if it has passed.
fn when(time: Option<&prost_types::Timestamp>, now: Option<Timestamp>) -> String {
    match (moment(time), now) {
        (Some(time), Some(now)) if time > now => format!("in {}", age::until(time, now)),
        (Some(_), Some(_)) => "now".to_owned(),
        (Some(time), None) => time.to_string(),
        (None, _) => "-".to_owned(),
    }
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

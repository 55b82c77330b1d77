//! The plan and the progress of a drain, pod by pod.

use std::collections::BTreeMap;

use muster_proto::pb;

use super::rows::or_none;
use super::table::Table;
use super::wrap::{hanging, paragraph};
use super::{Cell, Paint, UNKNOWN, Word};

/// The plan of a drain: each pod in order, with the action and the reason.
pub(crate) fn plan(node: &str, response: &pb::DrainNodeResponse, paint: Paint, width: usize) -> String {
    let mut text = paragraph(&format!("node/{node}: {}", verdict(response)), width);
    if response.pods.is_empty() {
        text.push_str("The node has no pods.\n");
        return text;
    }
    let mut table = Table::new(["POD", "ACTION", "STATE", "WHY"]);
    for pod in &response.pods {
        table.push([Cell::new(name(pod)), action(pod.action()), state(pod.state()), Cell::new(&pod.reason)]);
    }
    text.push_str(&table.take_within(paint, width));
    text
}

/// What the plans of several nodes come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PlanTotals {
    nodes: usize,
    refused: usize,
    evicted: usize,
    blocked: usize,
    deleted: usize,
    staying: usize,
    in_the_way: usize,
}

impl PlanTotals {
    pub(crate) fn add(&mut self, plan: &pb::DrainNodeResponse) {
        use pb::DrainPodAction as Action;
        let count = |wanted: &[Action]| plan.pods.iter().filter(|pod| wanted.contains(&pod.action())).count();
        let in_the_way = count(&[Action::Refuse]);
        self.nodes += 1;
        self.refused += usize::from(in_the_way > 0);
        self.evicted += count(&[Action::Evict]);
        self.deleted += count(&[Action::Delete]);
        self.staying += count(&[Action::Leave, Action::Skip]);
        self.in_the_way += in_the_way;
        let is_blocked = |pod: &&pb::DrainPod| pod.state() == pb::DrainPodState::Blocked;
        self.blocked += plan.pods.iter().filter(is_blocked).count();
    }

    /// A line with the sums; empty for one node, whose plan says it already.
    pub(crate) fn line(&self) -> String {
        let PlanTotals { nodes, refused, evicted, blocked, deleted, staying, in_the_way } = self;
        if *nodes < 2 {
            return String::new();
        }
        format!(
            "Total of {nodes} nodes: {evicted} pods to evict ({blocked} blocked now), {deleted} to delete, {staying} \
             to stay; {in_the_way} in the way of {refused} of the drains\n"
        )
    }
}

/// The state of a drain and its message.
pub(crate) fn verdict(response: &pb::DrainNodeResponse) -> String {
    let state = response.state().word();
    match response.message.trim() {
        "" => or_none(&state),
        // A message may start with the state, which is then not repeated.
        message => match message.split_once(": ") {
            Some((first, rest)) if first.eq_ignore_ascii_case(&state) => format!("{state}: {rest}"),
            _ => format!("{state}: {message}"),
        },
    }
}

/// The last printed state of a drain, to print only changes.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// By uid, because a later pod may have the same name.
    seen: BTreeMap<String, (pb::DrainPodState, String)>,
    state: pb::DrainProgressState,
}

impl Progress {
    /// A line for each change since the last call.
    pub(crate) fn lines(
        &mut self,
        node: &str,
        response: &pb::DrainNodeResponse,
        paint: Paint,
        width: usize,
    ) -> String {
        let mut text = String::new();
        for pod in &response.pods {
            let now = (pod.state(), pod.reason.clone());
            let before = self.seen.insert(key(pod), now.clone());
            // The reason of a waiting pod may change with every message; only the reason of a blocked pod is printed.
            let is_change = match before {
                None => true,
                Some((state, reason)) => {
                    state != now.0 || (now.0 == pb::DrainPodState::Blocked && reason != now.1)
                }
            };
            if is_change {
                text.push_str(&line(pod, paint, width));
            }
        }
        if self.state != response.state() {
            self.state = response.state();
            use pb::DrainProgressState as State;
            if matches!(self.state, State::Refused | State::Failed | State::Cancelled) {
                return text; // The error of the command says it.
            }
            text.push_str(&hanging(&format!("node/{node}: {}", verdict(response)), width));
        }
        text
    }
}

fn line(pod: &pb::DrainPod, paint: Paint, width: usize) -> String {
    let reason = if pod.reason.is_empty() { String::new() } else { format!(" ({})", pod.reason) };
    use pb::{DrainPodAction as Action, DrainPodState as State};
    let doing = match (pod.state(), pod.action()) {
        (State::Waiting, Action::Delete) => "to be deleted",
        (State::Waiting, _) => "to be evicted",
        (State::Blocked, _) => "blocked",
        (State::Stopping, _) => "stopping",
        (State::Gone, _) => "gone",
        (State::Stays, Action::Refuse) => "blocks the drain",
        (State::Stays, _) => "stays",
        (State::Unspecified, _) => UNKNOWN,
    };
    let doing_cell = Cell::new(doing);
    let doing_cell = match pod.state() {
        State::Gone => doing_cell.good(),
        State::Blocked => doing_cell.bad(),
        _ => doing_cell,
    };
    let plain = format!("pod/{} {doing}{reason}", name(pod)).replace(char::is_control, " ");
    // The colour must not count as width, so it comes after the text is broken into lines.
    let behind_the_name = format!(" {doing}");
    let painted = format!(" {}", doing_cell.painted(paint));
    hanging(&plain, width).replacen(&behind_the_name, &painted, 1)
}

fn name(pod: &pb::DrainPod) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

fn key(pod: &pb::DrainPod) -> String {
    if pod.uid.is_empty() { name(pod) } else { pod.uid.clone() }
}

fn action(action: pb::DrainPodAction) -> Cell {
    let cell = Cell::new(or_none(&action.word()));
    match action {
        pb::DrainPodAction::Refuse => cell.bad(),
        pb::DrainPodAction::Delete => cell.doubtful(),
        _ => cell,
    }
}

fn state(state: pb::DrainPodState) -> Cell {
    let cell = Cell::new(or_none(&state.word()));
    if state == pb::DrainPodState::Blocked { cell.bad() } else { cell }
}

#[cfg(test)]
mod tests;

//! The containers of a pod that fail: what happened, how often, what follows and the last words.

use jiff::Timestamp;
use muster_proto::pb;
use muster_proto::pod::Pod;
use unicode_width::UnicodeWidthStr;

use super::rows::pod_status::{moment, state, terminated, termination_reason};
use super::wrap::{paragraph, wrap};
use super::{Cell, Paint, age};
use pb::container_state::State;

/// A paragraph for each container that waits for a reason, ended with an error, or was restarted; empty if there is
/// none.
pub(crate) fn failing(pod: &Pod, now: Timestamp, paint: Paint, width: usize) -> String {
    let statuses = pod.status.init_container_statuses.iter().chain(&pod.status.container_statuses);
    statuses.filter_map(|status| container(status, now, paint, width)).collect()
}

fn container(status: &pb::ContainerStatus, now: Timestamp, paint: Paint, width: usize) -> Option<String> {
    let ended = |end: Option<&pb::ContainerStateTerminated>| end.filter(|end| end.exit_code != 0).cloned();
    let last =
        ended(terminated(status.state.as_ref())).or_else(|| ended(terminated(status.last_state.as_ref())));
    let (word, message) = match state(status.state.as_ref()) {
        Some(State::Waiting(waiting)) if !is_normal(&waiting.reason) => {
            (waiting.reason.clone(), waiting.message.clone())
        }
        Some(State::Terminated(end)) if end.exit_code != 0 => (termination_reason(end), String::new()),
        Some(State::Running(_)) if last.is_some() => ("running again".to_owned(), String::new()),
        _ => return None,
    };
    let restarts = match status.restart_count {
        0 => String::new(),
        1 => ", restarted once".to_owned(),
        count => format!(", restarted {count} times"),
    };
    let mut sentences = vec![format!("Container {}: {word}{restarts}.", status.name)];
    sentences.extend(last.as_ref().map(|end| ending(end, now)));
    sentences.extend((!message.is_empty()).then(|| sentence(&message)));
    let mut text = format!("\n{}", paragraph(&sentences.join(" "), width));
    if let Some(end) = last.filter(|end| !end.message.trim().is_empty()) {
        text.push_str("Its last words:\n");
        for line in end.message.trim_end().lines() {
            // What a program printed must not reach the terminal as escape codes.
            let line = Cell::new(line).on_one_line().painted(paint);
            let lines =
                if line.width() + 2 <= width { vec![line] } else { wrap(&line, width.saturating_sub(2)) };
            text.extend(lines.iter().map(|line| format!("  {line}\n")));
        }
    }
    Some(text)
}

/// Whether a container waits for nothing but its start.
fn is_normal(reason: &str) -> bool {
    matches!(reason, "" | "ContainerCreating" | "PodInitializing")
}

/// When and how a container ended.
fn ending(end: &pb::ContainerStateTerminated, now: Timestamp) -> String {
    let when = moment(end.finished_at.as_ref())
        .map(|finished| format!(" {} ago", age::since(Some(finished), now)))
        .unwrap_or_default();
    let signal = if end.signal == 0 { String::new() } else { format!(", signal {}", end.signal) };
    let reason = if end.reason.is_empty() { String::new() } else { format!(" ({})", end.reason) };
    format!("It ended{when} with exit code {}{signal}{reason}.", end.exit_code)
}

/// The text as a sentence: with a capital and a full stop.
fn sentence(text: &str) -> String {
    let mut letters = text.trim().trim_end_matches('.').chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn end(exit_code: i32, message: &str) -> pb::ContainerStateTerminated {
        pb::ContainerStateTerminated {
            exit_code,
            reason: "Error".to_owned(),
            message: message.to_owned(),
            finished_at: samples::at("2026-05-04T11:59:50Z"),
            ..Default::default()
        }
    }

    #[test]
    fn a_failing_container_is_shown_with_its_exit_its_restarts_and_its_last_words() {
        let mut pod = samples::pod();
        let of = |state| Some(pb::ContainerState { state: Some(state) });
        let waiting = pb::ContainerStateWaiting {
            reason: "CrashLoopBackOff".to_owned(),
            message: "back-off 40s restarting failed container".to_owned(),
        };
        let log = &mut pod.status.container_statuses[1];
        log.state = of(State::Waiting(waiting));
        log.last_state = of(State::Terminated(end(2, "cannot open /data\ngiving up\n")));
        assert_eq!(
            failing(&pod, samples::now(), Paint::Plain, usize::MAX),
            "\nContainer log: CrashLoopBackOff, restarted 3 times. It ended 10s ago with exit code 2 (Error). \
             Back-off 40s restarting failed container.\nIts last words:\n  cannot open /data\n  giving up\n"
        );
        let narrow = failing(&pod, samples::now(), Paint::Plain, 40);
        assert!(narrow.lines().all(|line| line.len() <= 40), "{narrow}");
    }

    #[test]
    fn a_healthy_pod_has_nothing_to_tell() {
        let mut pod = samples::pod();
        let text = failing(&pod, samples::now(), Paint::Plain, usize::MAX);
        assert_eq!(
            text,
            "\nContainer log: running again, restarted 3 times. It ended 11m ago with exit code 137, signal 9 \
             (OOMKilled).\n"
        );
        pod.status.container_statuses.truncate(1);
        assert_eq!(failing(&pod, samples::now(), Paint::Plain, usize::MAX), "");
    }
}

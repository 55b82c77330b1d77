// The answers of Watch calls, which share one Rust type: `muster_proto::watch::WatchFrame`.

/// Each such message, and the Rust type for it. `messages` and `frame` are the paths of the messages and of the type.
fn watch_responses(messages: &str, frame: &str) -> Vec<(String, String)> {
    ["Node", "Lease", "Pod", "DisruptionBudget", "Event"]
        .into_iter()
        .map(|kind| (format!(".muster.v1.Watch{kind}sResponse"), format!("{frame}<{messages}::{kind}WatchEvent>")))
        .collect()
}

// The responses of Watch calls. One generic Rust type replaces them: `muster_proto::watch::WatchFrame`.

/// The schema's name of each response and the Rust type for it, such as `WatchFrame<NodeWatchEvent>`. `messages` is the
/// Rust path of the generated messages, `frame` the path of the generic type.
fn watch_responses(messages: &str, frame: &str) -> Vec<(String, String)> {
    [
        "Node",
        "Lease",
        "Pod",
        "DisruptionBudget",
        "Event",
        "JoinToken",
        "CertificateRequest",
        "Revocation",
        "PriorityClass",
    ]
        .into_iter()
        .map(|kind| {
            let plural = if kind.ends_with('s') { "es" } else { "s" };
            (format!(".muster.v1.Watch{kind}{plural}Response"), format!("{frame}<{messages}::{kind}WatchEvent>"))
        })
        .collect()
}

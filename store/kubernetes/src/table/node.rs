//! The cells of a node.

use jiff::Timestamp;
use muster_proto::pb;
use serde_json::Value;

use super::{created, or};

const ROLE: &str = "node-role.kubernetes.io/";
const OLD_ROLE: &str = "kubernetes.io/role";

pub(super) fn cells(node: &pb::Node, now: Timestamp) -> Vec<Value> {
    let none = pb::Metadata::default();
    let meta = node.metadata.as_ref().unwrap_or(&none);
    let status = node.status.clone().unwrap_or_default();
    let info = status.node_info.clone().unwrap_or_default();
    let address = |kind: &str| {
        let found = status.addresses.iter().find(|address| address.r#type == kind);
        found.map_or("<none>".into(), |address| Value::from(address.address.as_str()))
    };
    let kernel = match (info.kernel_version.as_str(), info.architecture.as_str()) {
        ("", _) => "<unknown>".to_owned(),
        (kernel, "") => kernel.to_owned(),
        (kernel, architecture) => format!("{kernel} ({architecture})"),
    };
    vec![
        meta.name.as_str().into(),
        health(node).into(),
        roles(meta).into(),
        created(meta, now),
        info.kubelet_version.as_str().into(),
        address("InternalIP"),
        address("ExternalIP"),
        or(&info.os_image, "<unknown>"),
        kernel.into(),
        or(&info.container_runtime_version, "<unknown>"),
    ]
}

fn health(node: &pb::Node) -> String {
    let ready = node
        .status
        .iter()
        .flat_map(|status| &status.conditions)
        .find(|condition| condition.r#type == "Ready");
    let health = match ready.map(|ready| ready.status.as_str()) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    let unschedulable = node.spec.as_ref().is_some_and(|spec| spec.unschedulable);
    format!("{health}{}", if unschedulable { ",SchedulingDisabled" } else { "" })
}

fn roles(meta: &pb::Metadata) -> String {
    let mut roles: Vec<&str> = meta
        .labels
        .iter()
        .filter_map(|(key, value)| match key.strip_prefix(ROLE) {
            Some(role) => Some(role),
            None => (key == OLD_ROLE).then_some(value.as_str()),
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_a_node_is_its_ready_condition_and_whether_it_takes_pods() {
        for (ready, unschedulable, expected) in [
            (Some("True"), false, "Ready"),
            (Some("True"), true, "Ready,SchedulingDisabled"),
            (Some("False"), false, "NotReady"),
            (Some("Unknown"), false, "NotReady"),
            (None, true, "Unknown,SchedulingDisabled"),
        ] {
            let conditions = ready.map(|status| pb::NodeCondition {
                r#type: "Ready".into(),
                status: status.into(),
                ..Default::default()
            });
            let status =
                pb::NodeStatus { conditions: conditions.into_iter().collect(), ..Default::default() };
            let spec = pb::NodeSpec { unschedulable, ..Default::default() };
            let node = pb::Node { metadata: None, spec: Some(spec), status: Some(status) };
            assert_eq!(health(&node), expected);
        }
    }

    #[test]
    fn roles_come_from_both_labels() {
        let labels = [("node-role.kubernetes.io/worker", ""), ("kubernetes.io/role", "edge"), ("other", "x")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        assert_eq!(roles(&pb::Metadata { labels, ..Default::default() }), "edge,worker");
        assert_eq!(roles(&pb::Metadata::default()), "<none>");
    }
}

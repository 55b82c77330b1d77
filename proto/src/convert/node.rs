//! Nodes, their taints and their health.

use std::collections::BTreeSet;

use super::drain::{cordons_in, drain_in};
use super::meta::meta_in;
use super::{one_per_family, resources_in, resources_out, time_in, time_out, unless_default};
use crate::cidr::{Cidr, Family};
use crate::invalid::{Check, Invalid, Path};
use crate::node::{Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus};
use crate::pb;
use crate::record::Kind;
use crate::taint::{Taint, TaintEffect, check_new_taint, check_taint};

#[cfg(test)]
mod tests;

impl TryFrom<pb::Node> for Node {
    type Error = Invalid;

    fn try_from(node: pb::Node) -> Result<Self, Invalid> {
        let pb::Node { metadata, spec, status } = node;
        let mut check = Check::new();
        let meta = meta_in(&mut check, &Path::ROOT.key("metadata"), Kind::Node, metadata);
        let spec = spec_in(&mut check, &Path::ROOT.key("spec"), spec.unwrap_or_default());
        let status = status_in(&mut check, &Path::ROOT.key("status"), status.unwrap_or_default());
        check.finish_some(meta.map(|meta| Node { meta, spec, status }))
    }
}

/// A status without its node, as the heartbeat stream carries it.
impl TryFrom<pb::NodeStatus> for NodeStatus {
    type Error = Invalid;

    fn try_from(status: pb::NodeStatus) -> Result<Self, Invalid> {
        let mut check = Check::new();
        let status = status_in(&mut check, &Path::ROOT.key("status"), status);
        check.finish(status)
    }
}

fn spec_in(check: &mut Check, path: &Path<'_>, spec: pb::NodeSpec) -> NodeSpec {
    let pb::NodeSpec { pod_cidr, pod_cidrs, provider_id, unschedulable, taints, cordon, drain, cordons } =
        spec;
    NodeSpec {
        pod_cidrs: cidrs_in(check, path, &pod_cidr, &pod_cidrs),
        provider_id,
        unschedulable,
        taints: taints_in(check, &path.key("taints"), taints),
        cordons: cordons_in(check, path, cordon, cordons),
        drain: drain.and_then(|drain| drain_in(check, &path.key("drain"), drain)),
    }
}

fn cidrs_in(check: &mut Check, path: &Path<'_>, single: &str, list: &[String]) -> Vec<Cidr> {
    one_per_family(
        check,
        (&path.key("podCidr"), single),
        (&path.key("podCidrs"), list),
        |check, path, text| check.field(path, text.parse::<Cidr>()),
        |cidr| cidr.family() == Family::Ipv4,
    )
}

fn taints_in(check: &mut Check, path: &Path<'_>, taints: Vec<pb::Taint>) -> Vec<Taint> {
    let mut seen = BTreeSet::new();
    check.each(path, taints, |check, path, taint| {
        let pb::Taint { key, value, effect, time_added } = taint;
        check_taint(check, path, &key, &value);
        let effect: Option<TaintEffect> = check.field(&path.key("effect"), effect.parse());
        let time_added = time_in(check, &path.key("timeAdded"), time_added);
        let effect = effect?;
        check_new_taint(check, path, seen.insert((key.clone(), effect)));
        Some(Taint { key, value, effect, time_added })
    })
}

fn status_in(check: &mut Check, path: &Path<'_>, status: pb::NodeStatus) -> NodeStatus {
    let pb::NodeStatus {
        addresses,
        conditions,
        capacity,
        allocatable,
        node_info,
        images,
        daemon_endpoints,
        volumes_in_use,
        phase,
    } = status;
    let pb::NodeDaemonEndpoints { agent_port, agent_address } = daemon_endpoints.unwrap_or_default();
    let port_path = path.key("daemonEndpoints");
    let agent_port = check
        .field(&port_path.key("agentPort"), u16::try_from(agent_port).map_err(|_| "must be from 0 to 65535"));
    let node_info = node_info.unwrap_or_default();
    let swap = node_info.swap.as_ref().and_then(|swap| swap.capacity);
    check.ensure(
        &path.key("nodeInfo").key("swap.capacity"),
        swap.is_none_or(|bytes| bytes >= 0),
        "must not be negative",
    );
    NodeStatus {
        addresses: addresses_in(check, &path.key("addresses"), addresses),
        conditions: check.each(&path.key("conditions"), conditions, condition_in),
        capacity: resources_in(check, &path.key("capacity"), capacity),
        allocatable: resources_in(check, &path.key("allocatable"), allocatable),
        node_info,
        images,
        agent_port: agent_port.unwrap_or_default(),
        agent_address,
        volumes_in_use,
        phase,
    }
}

fn addresses_in(check: &mut Check, path: &Path<'_>, addresses: Vec<pb::NodeAddress>) -> Vec<NodeAddress> {
    let mut seen = BTreeSet::new();
    check.each(path, addresses, |check, path, given| {
        let pb::NodeAddress { r#type, address } = given;
        let kind = check.field(&path.key("type"), r#type.parse());
        check.ensure(&path.key("address"), !address.is_empty(), "is required");
        let address = NodeAddress { kind: kind?, address };
        check.ensure(path, seen.insert(address.clone()), "must not repeat an earlier address");
        Some(address)
    })
}

fn condition_in(check: &mut Check, path: &Path<'_>, condition: pb::NodeCondition) -> Option<NodeCondition> {
    let pb::NodeCondition { r#type, status, reason, message, last_heartbeat_time, last_transition_time } =
        condition;
    check.ensure(&path.key("type"), !r#type.is_empty(), "is required");
    let status = check.field(&path.key("status"), status.parse());
    let last_heartbeat_time = time_in(check, &path.key("lastHeartbeatTime"), last_heartbeat_time);
    let last_transition_time = time_in(check, &path.key("lastTransitionTime"), last_transition_time);
    Some(NodeCondition {
        kind: r#type,
        status: status?,
        reason,
        message,
        last_heartbeat_time,
        last_transition_time,
    })
}

impl From<Node> for pb::Node {
    fn from(node: Node) -> Self {
        let Node { meta, spec, status } = node;
        Self { metadata: Some(meta.into()), spec: Some(spec.into()), status: Some(status.into()) }
    }
}

impl From<NodeSpec> for pb::NodeSpec {
    fn from(spec: NodeSpec) -> Self {
        let NodeSpec { pod_cidrs, provider_id, unschedulable, taints, cordons, drain } = spec;
        let cordons: Vec<pb::NodeCordon> = cordons.into_iter().map(Into::into).collect();
        let pod_cidrs: Vec<String> = pod_cidrs.iter().map(Cidr::to_string).collect();
        Self {
            pod_cidr: pod_cidrs.first().cloned().unwrap_or_default(),
            pod_cidrs,
            provider_id,
            unschedulable,
            taints: taints.into_iter().map(Into::into).collect(),
            cordon: cordons.first().cloned(),
            drain: drain.map(Into::into),
            cordons,
        }
    }
}

impl From<Taint> for pb::Taint {
    fn from(taint: Taint) -> Self {
        let Taint { key, value, effect, time_added } = taint;
        Self { key, value, effect: effect.to_string(), time_added: time_out(time_added) }
    }
}

impl From<NodeStatus> for pb::NodeStatus {
    fn from(status: NodeStatus) -> Self {
        let NodeStatus {
            addresses,
            conditions,
            capacity,
            allocatable,
            node_info,
            images,
            agent_port,
            agent_address,
            volumes_in_use,
            phase,
        } = status;
        Self {
            addresses: addresses.into_iter().map(Into::into).collect(),
            conditions: conditions.into_iter().map(Into::into).collect(),
            capacity: resources_out(capacity),
            allocatable: resources_out(allocatable),
            node_info: unless_default(node_info),
            images,
            daemon_endpoints: unless_default(pb::NodeDaemonEndpoints {
                agent_port: agent_port.into(),
                agent_address,
            }),
            volumes_in_use,
            phase,
        }
    }
}

impl From<NodeAddress> for pb::NodeAddress {
    fn from(address: NodeAddress) -> Self {
        let NodeAddress { kind, address } = address;
        Self { r#type: kind.to_string(), address }
    }
}

impl From<NodeCondition> for pb::NodeCondition {
    fn from(condition: NodeCondition) -> Self {
        let NodeCondition { kind, status, reason, message, last_heartbeat_time, last_transition_time } =
            condition;
        Self {
            r#type: kind,
            status: status.to_string(),
            reason,
            message,
            last_heartbeat_time: time_out(last_heartbeat_time),
            last_transition_time: time_out(last_transition_time),
        }
    }
}

//! Well-known keys: the names of taints, labels and annotations whose meaning is fixed.
//!
//! They are those of Kubernetes, so that existing manifests, selectors and tools work unchanged.

/// The namespace that holds one lease for each node.
pub const NODE_LEASE_NAMESPACE: &str = "kube-node-lease";

/// The namespace of the control plane's own records.
pub const SYSTEM_NAMESPACE: &str = "kube-system";
/// The lease of the leading controller, in [`SYSTEM_NAMESPACE`].
pub const CONTROLLER_LEASE: &str = "muster-controller";
/// The lease that records the nodes deleted because the cloud reported no machine, in [`SYSTEM_NAMESPACE`].
pub const CLOUD_BRAKE_LEASE: &str = "muster-cloud-brake";

/// The component that an agent names as the source of its events.
pub const AGENT_COMPONENT: &str = "agent";

/// Taints that the control plane adds to nodes, and the conditions behind them.
pub mod taint {
    /// Ready is False. Every new node also has it, as NoSchedule, until it is Ready.
    pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
    /// Ready is Unknown: the node sends no heartbeats.
    pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
    pub const MEMORY_PRESSURE: &str = "node.kubernetes.io/memory-pressure";
    pub const DISK_PRESSURE: &str = "node.kubernetes.io/disk-pressure";
    pub const PID_PRESSURE: &str = "node.kubernetes.io/pid-pressure";
    pub const NETWORK_UNAVAILABLE: &str = "node.kubernetes.io/network-unavailable";
    /// The node is cordoned.
    pub const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
    /// An operator confirms that the machine is off, so its pods may be removed without its agent.
    pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
    /// The cloud reports the machine as switched off.
    pub const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
    /// The cloud integration has not initialised the node yet.
    pub const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
}

/// Labels with a fixed meaning.
pub mod label {
    pub const HOSTNAME: &str = "kubernetes.io/hostname";
    pub const OS: &str = "kubernetes.io/os";
    pub const ARCH: &str = "kubernetes.io/arch";
    pub const OS_BETA: &str = "beta.kubernetes.io/os";
    pub const ARCH_BETA: &str = "beta.kubernetes.io/arch";

    pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
    pub const INSTANCE_TYPE_BETA: &str = "beta.kubernetes.io/instance-type";

    pub const ZONE: &str = "topology.kubernetes.io/zone";
    pub const REGION: &str = "topology.kubernetes.io/region";
    pub const ZONE_BETA: &str = "failure-domain.beta.kubernetes.io/zone";
    pub const REGION_BETA: &str = "failure-domain.beta.kubernetes.io/region";

    /// `node-role.kubernetes.io/<role>`; the value is ignored.
    pub const ROLE_PREFIX: &str = "node-role.kubernetes.io/";
    /// The older spelling of a role, `kubernetes.io/role=<role>`.
    pub const ROLE: &str = "kubernetes.io/role";

    /// Excludes a node from the counts of its zone's state.
    pub const EXCLUDE_DISRUPTION: &str = "node.kubernetes.io/exclude-disruption";
}

/// Annotations with a fixed meaning.
pub mod annotation {
    /// Marks a mirror pod: the record of a static pod of a node.
    pub const MIRROR: &str = "kubernetes.io/config.mirror";
    /// The source of a pod; any value but `api` says that it is a static pod, which only its agent knows for sure.
    pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
    pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
    /// The address from the agent's --node-ip; the cloud integration reads it.
    pub const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";
    /// On [`super::CLOUD_BRAKE_LEASE`]: when how many nodes were deleted, as `TIME*COUNT`, separated by spaces.
    pub const CLOUD_DELETIONS: &str = "muster.dev/cloud-deletions";
    /// On the bookmark after the initial events of a watch.
    pub const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";
}

#[cfg(test)]
mod tests {
    use super::{
        CLOUD_BRAKE_LEASE, CONTROLLER_LEASE, NODE_LEASE_NAMESPACE, SYSTEM_NAMESPACE, annotation, label, taint,
    };
    use crate::label::{check_annotation_key, check_label_key};
    use crate::name::{Name, Namespace};

    #[test]
    fn the_well_known_keys_are_valid() {
        for namespace in [NODE_LEASE_NAMESPACE, SYSTEM_NAMESPACE] {
            assert_eq!(namespace.parse::<Namespace>().map(|_| ()), Ok(()));
        }
        for name in [CONTROLLER_LEASE, CLOUD_BRAKE_LEASE] {
            assert_eq!(name.parse::<Name>().map(|_| ()), Ok(()));
        }
        let role = format!("{}x", label::ROLE_PREFIX);
        for key in [taint::NOT_READY, taint::SHUTDOWN, label::ZONE_BETA, label::EXCLUDE_DISRUPTION, &role] {
            assert_eq!(check_label_key(key), Ok(()), "{key}");
        }
        for key in [annotation::MIRROR, annotation::CONFIG_SOURCE, annotation::INITIAL_EVENTS_END] {
            assert_eq!(check_annotation_key(key), Ok(()), "{key}");
        }
    }
}

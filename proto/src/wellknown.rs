//! Well-known keys: the names of taints, labels and annotations whose meaning is fixed.
//!
//! They are Kubernetes' own, letter for letter, so that existing manifests, selectors and habits carry over.

/// The namespace that holds one lease for each node.
pub const NODE_LEASE_NAMESPACE: &str = "kube-node-lease";

/// The namespace of the control plane's own records.
pub const SYSTEM_NAMESPACE: &str = "kube-system";
/// The lease by which controllers agree on the one that acts; it lives in [`SYSTEM_NAMESPACE`].
pub const CONTROLLER_LEASE: &str = "muster-controller";
/// The record of nodes that were deleted on the cloud's word; it lives in [`SYSTEM_NAMESPACE`].
pub const CLOUD_BRAKE_LEASE: &str = "muster-cloud-brake";

/// Taints the control plane puts on nodes, and the conditions behind them.
pub mod taint {
    /// Ready is False. Also put on every new node, as NoSchedule, until it is Ready.
    pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
    /// Ready is Unknown: nobody has heard from the node.
    pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
    pub const MEMORY_PRESSURE: &str = "node.kubernetes.io/memory-pressure";
    pub const DISK_PRESSURE: &str = "node.kubernetes.io/disk-pressure";
    pub const PID_PRESSURE: &str = "node.kubernetes.io/pid-pressure";
    pub const NETWORK_UNAVAILABLE: &str = "node.kubernetes.io/network-unavailable";
    /// The node is cordoned.
    pub const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
    /// A person vouches that the machine is off, so its pods may be removed without it.
    pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
    /// The cloud has the machine switched off.
    pub const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
    /// The cloud has not described the node yet.
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

    /// `node-role.kubernetes.io/<role>`; the value does not matter.
    pub const ROLE_PREFIX: &str = "node-role.kubernetes.io/";
    /// The older spelling of a role, `kubernetes.io/role=<role>`.
    pub const ROLE: &str = "kubernetes.io/role";

    /// Keeps a node out of the count that decides whether a zone is disrupted.
    pub const EXCLUDE_DISRUPTION: &str = "node.kubernetes.io/exclude-disruption";
}

/// Annotations with a fixed meaning.
pub mod annotation {
    /// Marks a mirror pod: the record of a pod that a node runs on its own account.
    pub const MIRROR: &str = "kubernetes.io/config.mirror";
    /// Where a node found a pod; anything but `api` makes it a static pod.
    pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
    pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
    /// The address a node was told to use; the cloud controller looks it up.
    pub const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";
    /// When nodes were deleted on the cloud's word, on the record of that: `TIME*COUNT`, separated by spaces.
    pub const CLOUD_DELETIONS: &str = "muster.dev/cloud-deletions";
    /// On the bookmark that ends the initial events of a watch.
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
    fn the_fixed_keys_follow_our_own_rules() {
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

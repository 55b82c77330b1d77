//! Which labels a node may set on itself.
//!
//! Labels decide where pods are scheduled, so a compromised node must not be able to attract pods by changing its own.
//! A node may not set keys of the Kubernetes domains, except those that it has to report.

use crate::label::LabelKey;
use crate::wellknown::label;

/// Domains whose labels a node may not set, unless listed below.
///
/// This includes `node-restriction.kubernetes.io`, where operators put labels that nodes must not change.
const CLOSED: [&str; 2] = ["kubernetes.io", "k8s.io"];

/// Domains below the restricted ones that a node may set.
const OPEN: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// Single labels that a node may set: they describe the machine or its location.
const REPORTED: [&str; 11] = [
    label::HOSTNAME,
    label::OS,
    label::ARCH,
    label::OS_BETA,
    label::ARCH_BETA,
    label::INSTANCE_TYPE,
    label::INSTANCE_TYPE_BETA,
    label::ZONE,
    label::REGION,
    label::ZONE_BETA,
    label::REGION_BETA,
];

/// Whether a node may add, change or remove the label on its own record.
pub fn node_may_set_label(key: &str) -> bool {
    let parts = LabelKey::split(key);
    !CLOSED.iter().any(|domain| parts.is_under(domain))
        || REPORTED.contains(&key)
        || OPEN.iter().any(|domain| parts.is_under(domain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_may_describe_itself_but_not_promote_itself() {
        for (key, expected) in [
            ("foo", true),
            ("kubernetes.io", true),
            ("example.com/x", true),
            ("mykubernetes.io/x", true),
            ("kubernetes.io.example.com/x", true),
            ("kubelet.kubernetes.io/x", true),
            ("foo.kubelet.kubernetes.io/x", true),
            ("node.kubernetes.io/x", true),
            ("foo.node.kubernetes.io/x", true),
            ("node.kubernetes.io/exclude-disruption", true),
            ("topology.kubernetes.io/zone", true),
            ("topology.kubernetes.io/region", true),
            ("failure-domain.beta.kubernetes.io/zone", true),
            ("failure-domain.beta.kubernetes.io/region", true),
            ("kubernetes.io/hostname", true),
            ("kubernetes.io/os", true),
            ("kubernetes.io/arch", true),
            ("beta.kubernetes.io/os", true),
            ("beta.kubernetes.io/arch", true),
            ("beta.kubernetes.io/instance-type", true),
            ("node.kubernetes.io/instance-type", true),
            ("kubernetes.io/role", false),
            ("k8s.io/x", false),
            ("other.k8s.io/x", false),
            ("other.kubernetes.io/x", false),
            ("topology.kubernetes.io/rack", false),
            ("beta.kubernetes.io/x", false),
            ("node.k8s.io/x", false),
            ("node-role.kubernetes.io/x", false),
            ("node-role.kubernetes.io/control-plane", false),
            ("node-restriction.kubernetes.io/x", false),
            ("foo.node-restriction.kubernetes.io/x", false),
        ] {
            assert_eq!(node_may_set_label(key), expected, "{key}");
        }
    }
}

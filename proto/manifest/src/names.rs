//! The one table of where our JSON and Kubernetes' differ: names, shapes, and fields that only one of the two has.
//!
//! Manifests (`field_names`) and the Kubernetes API (`kubernetes`) both use it. A field that is not listed has the same
//! name in both, but for the capitals of [`INITIALISMS`], and the same shape.

use std::borrow::Cow;

use prost_reflect::{FieldDescriptor, MessageDescriptor};

/// Word endings that Kubernetes writes in capitals.
const INITIALISMS: [(&str, &str); 6] =
    [("Cidrs", "CIDRs"), ("Cidr", "CIDR"), ("Ips", "IPs"), ("Ip", "IP"), ("Uuid", "UUID"), ("Id", "ID")];

/// How a field's value differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Not at all.
    Same,
    /// Kubernetes has no such field.
    Hidden,
    /// Kubernetes has it as this field of an object. Several of our fields may be in one object.
    In(&'static str),
    /// Kubernetes has each element of the list as this field of an object.
    EachIn(&'static str),
    /// The field `name` of the message has this name in Kubernetes.
    NameIs(&'static str),
    /// A text that Kubernetes writes as a number if it is one.
    IntOrText,
    /// A time with six digits after the second.
    MicroTime,
    /// The kind of a record.
    KindName,
}

/// A field that differs in more than its capitals.
#[derive(Debug)]
pub(crate) struct Difference {
    message: &'static str,
    /// Its JSON name in the schema.
    field: &'static str,
    /// Its name in Kubernetes.
    pub(crate) kubernetes: &'static str,
    pub(crate) shape: Shape,
}

const fn differs(
    message: &'static str,
    field: &'static str,
    kubernetes: &'static str,
    shape: Shape,
) -> Difference {
    Difference { message, field, kubernetes, shape }
}

const DIFFERENCES: [Difference; 21] = [
    differs("Metadata", "traceparent", "", Shape::Hidden),
    differs("NodeSpec", "cordon", "", Shape::Hidden),
    differs("NodeSpec", "cordons", "", Shape::Hidden),
    differs("NodeSpec", "drain", "", Shape::Hidden),
    differs("LeaseSpec", "statusDigest", "", Shape::Hidden),
    differs("LeaseSpec", "statusAgeMillis", "", Shape::Hidden),
    differs("LeaseSpec", "acquireTime", "acquireTime", Shape::MicroTime),
    differs("LeaseSpec", "renewTime", "renewTime", Shape::MicroTime),
    differs("NodeDaemonEndpoints", "agentPort", "kubeletEndpoint", Shape::In("Port")),
    differs("Lifecycle", "preStop", "preStop", Shape::In("exec")),
    differs("PodStatus", "podIps", "podIPs", Shape::EachIn("ip")),
    differs("Volume", "secret", "secret", Shape::NameIs("secretName")),
    differs("Volume", "persistentVolumeClaim", "persistentVolumeClaim", Shape::NameIs("claimName")),
    differs("DisruptionBudgetSpec", "minAvailable", "minAvailable", Shape::IntOrText),
    differs("DisruptionBudgetSpec", "maxUnavailable", "maxUnavailable", Shape::IntOrText),
    differs("Event", "sourceComponent", "source", Shape::In("component")),
    differs("Event", "sourceHost", "source", Shape::In("host")),
    differs("ObjectReference", "kind", "kind", Shape::KindName),
    // These two are Kubernetes' own words in our schema.
    differs("NodeSystemInfo", "kubeletVersion", "kubeletVersion", Shape::Same),
    differs("NodeSystemInfo", "kubeProxyVersion", "kubeProxyVersion", Shape::Same),
    differs("NodeSystemInfo", "swap", "swap", Shape::Same),
];

/// Names that fields had in the first releases of Kubernetes: message, that name, and the field. They are read only.
const EARLIER_NAMES: [(&str, &str, &str); 2] =
    [("NodeCondition", "kind", "type"), ("PodCondition", "kind", "type")];

/// What Kubernetes always writes, even without a value: message, name in Kubernetes, and the JSON of no value. For a
/// message `{}` stands for what is always written in it.
const ALWAYS_WRITTEN: [(&str, &str, &str); 45] = [
    ("Node", "spec", "{}"),
    ("Node", "status", "{}"),
    ("NodeStatus", "daemonEndpoints", "{}"),
    ("NodeDaemonEndpoints", "kubeletEndpoint", r#"{"Port":0}"#),
    ("NodeStatus", "nodeInfo", "{}"),
    ("NodeSystemInfo", "machineID", "\"\""),
    ("NodeSystemInfo", "systemUUID", "\"\""),
    ("NodeSystemInfo", "bootID", "\"\""),
    ("NodeSystemInfo", "kernelVersion", "\"\""),
    ("NodeSystemInfo", "osImage", "\"\""),
    ("NodeSystemInfo", "containerRuntimeVersion", "\"\""),
    ("NodeSystemInfo", "kubeletVersion", "\"\""),
    ("NodeSystemInfo", "kubeProxyVersion", "\"\""),
    ("NodeSystemInfo", "operatingSystem", "\"\""),
    ("NodeSystemInfo", "architecture", "\"\""),
    ("NodeCondition", "lastHeartbeatTime", "null"),
    ("NodeCondition", "lastTransitionTime", "null"),
    ("Pod", "spec", "{}"),
    ("Pod", "status", "{}"),
    ("PodSpec", "containers", "[]"),
    ("Container", "resources", "{}"),
    ("ContainerPort", "containerPort", "0"),
    ("PodCondition", "lastProbeTime", "null"),
    ("PodCondition", "lastTransitionTime", "null"),
    ("ContainerStatus", "state", "{}"),
    ("ContainerStatus", "lastState", "{}"),
    ("ContainerStatus", "ready", "false"),
    ("ContainerStatus", "restartCount", "0"),
    ("ContainerStatus", "image", "\"\""),
    ("ContainerStatus", "imageID", "\"\""),
    ("ContainerStateRunning", "startedAt", "null"),
    ("ContainerStateTerminated", "exitCode", "0"),
    ("ContainerStateTerminated", "startedAt", "null"),
    ("ContainerStateTerminated", "finishedAt", "null"),
    ("DisruptionBudgetStatus", "disruptionsAllowed", "0"),
    ("DisruptionBudgetStatus", "currentHealthy", "0"),
    ("DisruptionBudgetStatus", "desiredHealthy", "0"),
    ("DisruptionBudgetStatus", "expectedPods", "0"),
    ("Lease", "spec", "{}"),
    ("Event", "involvedObject", "{}"),
    ("Event", "source", "{}"),
    ("Event", "firstTimestamp", "null"),
    ("Event", "lastTimestamp", "null"),
    ("Event", "eventTime", "null"),
    ("Event", "reportingInstance", "\"\""),
];

/// Fields of Kubernetes that Muster does not keep.
const NOT_KEPT: [(&str, &[&str]); 14] = [
    ("Metadata", &["managedFields", "selfLink", "generateName"]),
    ("NodeSpec", &["configSource", "externalID"]),
    ("NodeStatus", &["config", "declaredFeatures", "features", "runtimeHandlers", "volumesAttached"]),
    ("NodeCondition", &["observedGeneration"]),
    (
        "PodSpec",
        &[
            "activeDeadlineSeconds",
            "automountServiceAccountToken",
            "dnsConfig",
            "dnsPolicy",
            "enableServiceLinks",
            "ephemeralContainers",
            "hostAliases",
            "hostIPC",
            "hostPID",
            "hostUsers",
            "hostname",
            "hostnameOverride",
            "imagePullSecrets",
            "os",
            "readinessGates",
            "resourceClaims",
            "resources",
            "runtimeClassName",
            "schedulerName",
            "schedulingGroup",
            "serviceAccount",
            "setHostnameAsFQDN",
            "shareProcessNamespace",
            "subdomain",
            "topologySpreadConstraints",
        ],
    ),
    ("Affinity", &["podAffinity", "podAntiAffinity"]),
    (
        "PodSecurityContext",
        &[
            "appArmorProfile",
            "fsGroup",
            "fsGroupChangePolicy",
            "seLinuxChangePolicy",
            "seLinuxOptions",
            "seccompProfile",
            "supplementalGroups",
            "supplementalGroupsPolicy",
            "sysctls",
            "windowsOptions",
        ],
    ),
    (
        "SecurityContext",
        &[
            "appArmorProfile",
            "capabilities",
            "procMount",
            "readOnlyRootFilesystem",
            "seLinuxOptions",
            "seccompProfile",
            "windowsOptions",
        ],
    ),
    (
        "Container",
        &[
            "envFrom",
            "imagePullPolicy",
            "livenessProbe",
            "readinessProbe",
            "resizePolicy",
            "restartPolicyRules",
            "startupProbe",
            "stdin",
            "stdinOnce",
            "terminationMessagePath",
            "terminationMessagePolicy",
            "tty",
            "volumeDevices",
        ],
    ),
    ("VolumeMount", &["mountPropagation", "recursiveReadOnly", "subPath", "subPathExpr"]),
    (
        "PodStatus",
        &[
            "allocatedResources",
            "ephemeralContainerStatuses",
            "hostIPs",
            "resize",
            "resourceClaimStatuses",
            "resources",
        ],
    ),
    (
        "ContainerStatus",
        &[
            "allocatedResources",
            "allocatedResourcesStatus",
            "imageID",
            "resources",
            "started",
            "stopSignal",
            "user",
            "volumeMounts",
        ],
    ),
    ("Event", &["action", "eventTime", "related", "reportingComponent", "reportingInstance", "series"]),
    ("ObjectReference", &["apiVersion", "fieldPath", "resourceVersion"]),
];

/// Fields of [`NOT_KEPT`] that clients send without meaning anything by it: what they send is what happens anyway, or
/// it is what they read.
const WITHOUT_EFFECT: [(&str, &str, Option<&str>); 24] = [
    ("Metadata", "managedFields", None),
    ("Metadata", "selfLink", None),
    ("Metadata", "generateName", None),
    ("PodSpec", "dnsPolicy", Some("ClusterFirst")),
    ("PodSpec", "enableServiceLinks", None),
    ("PodSpec", "schedulerName", Some("default-scheduler")),
    ("PodSpec", "serviceAccount", None),
    ("Container", "imagePullPolicy", None),
    ("Container", "terminationMessagePath", None),
    ("Container", "terminationMessagePolicy", None),
    ("PodStatus", "hostIPs", None),
    ("ContainerStatus", "imageID", None),
    ("ContainerStatus", "started", None),
    ("ContainerStatus", "allocatedResources", None),
    ("ContainerStatus", "resources", None),
    ("Event", "action", None),
    ("Event", "eventTime", None),
    ("Event", "related", None),
    ("Event", "reportingComponent", None),
    ("Event", "reportingInstance", None),
    ("Event", "series", None),
    ("ObjectReference", "apiVersion", None),
    ("ObjectReference", "fieldPath", None),
    ("ObjectReference", "resourceVersion", None),
];

fn short(message: &MessageDescriptor) -> &str {
    message.name()
}

/// How a field differs, if in more than its capitals.
pub(crate) fn difference(field: &FieldDescriptor) -> Option<&'static Difference> {
    let message = field.parent_message();
    let (message, name) = (short(message), field.json_name());
    DIFFERENCES.iter().find(|known| known.field == name && known.message == message)
}

/// The shape of a field.
pub(crate) fn shape(field: &FieldDescriptor) -> Shape {
    difference(field).map_or(Shape::Same, |known| known.shape)
}

/// The name of a field in Kubernetes; empty if it has none.
pub(crate) fn kubernetes_name(field: &FieldDescriptor) -> Cow<'_, str> {
    match difference(field) {
        Some(known) => Cow::Borrowed(known.kubernetes),
        None => with_capitals(field.json_name()),
    }
}

/// The name with the capitals of Kubernetes: `podCIDRs` for `podCidrs`.
pub(crate) fn with_capitals(name: &str) -> Cow<'_, str> {
    for (word, capitals) in INITIALISMS {
        if let Some(start) = name.strip_suffix(word) {
            return Cow::Owned(format!("{start}{capitals}"));
        }
    }
    Cow::Borrowed(name)
}

/// Our fields that are this one field in Kubernetes; more than one only for [`Shape::In`].
pub(crate) fn fields_named(message: &MessageDescriptor, kubernetes: &str) -> Vec<FieldDescriptor> {
    let named = |field: &FieldDescriptor| !kubernetes.is_empty() && kubernetes_name(field) == kubernetes;
    message.fields().filter(named).collect()
}

/// Our field that had this name in Kubernetes once.
pub(crate) fn field_once_named(message: &MessageDescriptor, name: &str) -> Option<FieldDescriptor> {
    let known = EARLIER_NAMES.iter().find(|(of, earlier, _)| *of == short(message) && *earlier == name);
    known.and_then(|(_, _, field)| message.get_field_by_json_name(field))
}

/// What Kubernetes writes in a message even if there is no value, as JSON.
pub(crate) fn always_written(
    message: &MessageDescriptor,
) -> impl Iterator<Item = (&'static str, &'static str)> {
    let message = short(message).to_owned();
    ALWAYS_WRITTEN.iter().filter(move |(of, ..)| *of == message).map(|(_, name, value)| (*name, *value))
}

/// Whether Kubernetes has this field, and Muster does not keep it.
pub(crate) fn is_not_kept(message: &MessageDescriptor, kubernetes: &str) -> bool {
    let of = short(message);
    NOT_KEPT.iter().any(|(message, names)| *message == of && names.contains(&kubernetes))
}

/// Whether it makes no difference that this field is not kept.
pub(crate) fn is_without_effect(
    message: &MessageDescriptor,
    kubernetes: &str,
    value: &serde_json::Value,
) -> bool {
    use serde_json::Value;
    let is_empty = match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Number(_) => false,
    };
    let of = short(message);
    is_empty
        || WITHOUT_EFFECT.iter().any(|(message, name, only)| {
            *message == of && *name == kubernetes && only.is_none_or(|only| value == only)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::descriptor;
    use muster_proto::record::Kind;

    fn message(name: &str) -> MessageDescriptor {
        let pool = descriptor(Kind::Node).parent_pool().clone();
        pool.get_message_by_name(&format!("muster.v1.{name}")).unwrap_or_else(|| panic!("no message {name}"))
    }

    #[test]
    fn every_field_of_the_tables_exists_or_does_not_as_they_say() {
        for Difference { message: of, field, .. } in &DIFFERENCES {
            assert!(message(of).get_field_by_json_name(field).is_some(), "{of}.{field}");
        }
        for (of, names) in NOT_KEPT {
            for name in names {
                assert!(fields_named(&message(of), name).is_empty(), "{of}.{name} is kept");
            }
        }
        for (of, name, _) in WITHOUT_EFFECT {
            assert!(is_not_kept(&message(of), name), "{of}.{name}");
        }
        for (of, name, value) in ALWAYS_WRITTEN {
            let known = !fields_named(&message(of), name).is_empty() || is_not_kept(&message(of), name);
            assert!(known, "{of}.{name}");
            assert!(serde_json::from_str::<serde_json::Value>(value).is_ok(), "{of}.{name}: {value}");
        }
    }

    #[test]
    fn names_have_the_capitals_of_kubernetes() {
        for (ours, theirs) in [
            ("podCidr", "podCIDR"),
            ("podCidrs", "podCIDRs"),
            ("providerId", "providerID"),
            ("hostIp", "hostIP"),
            ("systemUuid", "systemUUID"),
            ("uid", "uid"),
            ("pid", "pid"),
        ] {
            assert_eq!(with_capitals(ours), theirs);
        }
    }
}

//! Builders of records: `node("a").label("zone", "a").taint("gpu=yes:NoSchedule")`.

use muster_proto::pb;
use prost::Message;

use crate::resource::Resource;
use crate::store_process::SeededRandom;

/// The default namespace of pods and budgets.
pub const NAMESPACE: &str = "default";

/// A node with nothing but a name.
pub fn node(name: &str) -> pb::Node {
    pb::Node { metadata: Some(named("", name)), spec: None, status: None }
}

/// A status as an agent posts it, with that message in its Ready condition. Its encoding has `bytes` bytes, or more if
/// it is that much without images: images fill it up.
pub fn status_of(bytes: usize, message: &str) -> pb::NodeStatus {
    let text = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    let resources = [("cpu", "16"), ("memory", "65536Mi"), ("pods", "110")].map(text);
    let address =
        |kind: &str, address: &str| pb::NodeAddress { r#type: kind.into(), address: address.into() };
    let ready = pb::NodeCondition {
        r#type: "Ready".into(),
        status: "True".into(),
        reason: "AgentReady".into(),
        message: message.to_owned(),
        ..Default::default()
    };
    let node_info = pb::NodeSystemInfo {
        machine_id: "6f1c0a7e9b2d4c5f8e3a1b0c9d8e7f60".into(),
        kernel_version: "6.1.0-18-amd64".into(),
        os_image: "Debian GNU/Linux 12 (bookworm)".into(),
        operating_system: "linux".into(),
        architecture: "amd64".into(),
        ..Default::default()
    };
    let mut status = pb::NodeStatus {
        addresses: vec![address("InternalIP", "10.0.0.1"), address("Hostname", "node")],
        conditions: vec![ready],
        capacity: resources.clone().into(),
        allocatable: resources.into(),
        node_info: Some(node_info),
        ..Default::default()
    };
    // Digests, so that a store that compresses gains as little as with real ones.
    let mut random = SeededRandom::from_seed(7);
    let mut missing = bytes.saturating_sub(status.encoded_len());
    // An image takes 14 bytes beside the digits of its name.
    while missing > 14 {
        let digits: String = (0..4).map(|_| format!("{:016x}", random.number())).collect();
        let name = format!("image@{}", &digits[..digits.len().min(missing - 14)]);
        let image = pb::ContainerImage { names: vec![name], size_bytes: 1 << 20 };
        // Its tag and its length take one byte each.
        missing -= image.encoded_len() + 2;
        status.images.push(image);
    }
    status
}

/// A pod of one container, in `default`.
pub fn pod(name: &str) -> pb::Pod {
    let containers = vec![container("main")];
    let spec = pb::PodSpec { containers, ..Default::default() };
    pb::Pod { metadata: Some(named(NAMESPACE, name)), spec: Some(spec), status: None }
}

/// A container without resource requests.
pub fn container(name: &str) -> pb::Container {
    pb::Container { name: name.to_owned(), image: "image".to_owned(), ..Default::default() }
}

/// A lease in `kube-node-lease` without a holder.
pub fn lease(name: &str) -> pb::Lease {
    let metadata = Some(named(muster_proto::wellknown::NODE_LEASE_NAMESPACE, name));
    pb::Lease { metadata, spec: Some(pb::LeaseSpec::default()) }
}

/// A budget in `default` that keeps `min_available` of the pods with that label.
pub fn budget(name: &str, (key, value): (&str, &str), min_available: &str) -> pb::DisruptionBudget {
    let selector = pb::LabelSelector {
        match_labels: [(key.to_owned(), value.to_owned())].into(),
        match_expressions: vec![],
    };
    let spec = pb::DisruptionBudgetSpec {
        selector: Some(selector),
        min_available: min_available.to_owned(),
        ..Default::default()
    };
    pb::DisruptionBudget { metadata: Some(named(NAMESPACE, name)), spec: Some(spec), status: None }
}

/// An event about a node.
pub fn event(node: &str, reason: &str, message: &str) -> pb::Event {
    let involved =
        pb::ObjectReference { kind: "Node".to_owned(), name: node.to_owned(), ..Default::default() };
    pb::Event {
        involved_object: Some(involved),
        reason: reason.to_owned(),
        message: message.to_owned(),
        source_component: "test".to_owned(),
        ..Default::default()
    }
}

/// A taint from `key=value:effect`, without validation.
pub fn taint(text: &str) -> pb::Taint {
    let (mark, effect) = text.rsplit_once(':').unwrap_or((text, ""));
    let (key, value) = mark.split_once('=').unwrap_or((mark, ""));
    pb::Taint { key: key.to_owned(), value: value.to_owned(), effect: effect.to_owned(), time_added: None }
}

/// A toleration of every taint with that key and effect.
pub fn tolerates(key: &str, effect: &str) -> pb::Toleration {
    let (key, effect) = (key.to_owned(), effect.to_owned());
    pb::Toleration { key, operator: "Exists".to_owned(), effect, ..Default::default() }
}

fn named(namespace: &str, name: &str) -> pb::Metadata {
    pb::Metadata { name: name.to_owned(), namespace: namespace.to_owned(), ..Default::default() }
}

/// Metadata of any record.
pub trait MetadataBuilder: Resource {
    /// The record with its metadata changed.
    fn with(mut self, change: impl FnOnce(&mut pb::Metadata)) -> Self {
        change(self.metadata_mut().get_or_insert_default());
        self
    }

    fn label(self, key: &str, value: &str) -> Self {
        self.with(|metadata| drop(metadata.labels.insert(key.to_owned(), value.to_owned())))
    }

    fn without_label(self, key: &str) -> Self {
        self.with(|metadata| drop(metadata.labels.remove(key)))
    }

    fn annotation(self, key: &str, value: &str) -> Self {
        self.with(|metadata| drop(metadata.annotations.insert(key.to_owned(), value.to_owned())))
    }

    fn finalizers(self, finalizers: &[&str]) -> Self {
        let finalizers = finalizers.iter().map(|finalizer| (*finalizer).to_owned()).collect();
        self.with(|metadata| metadata.finalizers = finalizers)
    }

    /// With an owner reference to that record, as its controller.
    fn owned_by(self, kind: &str, name: &str, uid: &str) -> Self {
        let (kind, name, uid) = (kind.to_owned(), name.to_owned(), uid.to_owned());
        let api_version = "v1".to_owned();
        let owner = pb::OwnerReference {
            api_version,
            kind,
            name,
            uid,
            controller: true,
            block_owner_deletion: false,
        };
        self.with(|metadata| metadata.owner_references.push(owner))
    }

    fn in_namespace(self, namespace: &str) -> Self {
        self.with(|metadata| namespace.clone_into(&mut metadata.namespace))
    }

    /// With this resource version: an update then fails when the record was changed since.
    fn at(self, version: u64) -> Self {
        self.with(|metadata| metadata.resource_version = version)
    }
}

impl<R: Resource> MetadataBuilder for R {}

/// Fields of a node.
pub trait NodeBuilder: Sized {
    fn spec(self, change: impl FnOnce(&mut pb::NodeSpec)) -> Self;
    fn status(self, change: impl FnOnce(&mut pb::NodeStatus)) -> Self;

    fn taint(self, text: &str) -> Self {
        self.spec(|spec| spec.taints.push(taint(text)))
    }

    fn pod_cidrs(self, cidrs: &[&str]) -> Self {
        let cidrs: Vec<String> = cidrs.iter().map(|cidr| (*cidr).to_owned()).collect();
        self.spec(|spec| {
            spec.pod_cidr = cidrs.first().cloned().unwrap_or_default();
            spec.pod_cidrs = cidrs;
        })
    }

    fn provider_id(self, id: &str) -> Self {
        self.spec(|spec| id.clone_into(&mut spec.provider_id))
    }

    fn cordoned(self) -> Self {
        self.spec(|spec| spec.unschedulable = true)
    }

    /// With the Ready condition at that status.
    fn ready(self, status: &str) -> Self {
        let (r#type, status) = ("Ready".to_owned(), status.to_owned());
        let condition = pb::NodeCondition { r#type, status, ..Default::default() };
        self.status(|held| held.conditions = vec![condition])
    }

    fn capacity(self, resource: &str, quantity: &str) -> Self {
        self.status(|status| drop(status.capacity.insert(resource.to_owned(), quantity.to_owned())))
    }
}

impl NodeBuilder for pb::Node {
    fn spec(mut self, change: impl FnOnce(&mut pb::NodeSpec)) -> Self {
        change(self.spec.get_or_insert_default());
        self
    }

    fn status(mut self, change: impl FnOnce(&mut pb::NodeStatus)) -> Self {
        change(self.status.get_or_insert_default());
        self
    }
}

/// Fields of a pod.
pub trait PodBuilder: Sized {
    fn spec(self, change: impl FnOnce(&mut pb::PodSpec)) -> Self;
    fn status(self, change: impl FnOnce(&mut pb::PodStatus)) -> Self;

    /// Bound to that node.
    fn on(self, node: &str) -> Self {
        self.spec(|spec| node.clone_into(&mut spec.node_name))
    }

    fn toleration(self, toleration: pb::Toleration) -> Self {
        self.spec(|spec| spec.tolerations.push(toleration))
    }

    fn grace(self, seconds: i64) -> Self {
        self.spec(|spec| spec.termination_grace_period_seconds = Some(seconds))
    }

    fn phase(self, phase: &str) -> Self {
        self.status(|status| phase.clone_into(&mut status.phase))
    }

    /// Running, with the Ready condition at that status.
    fn running(self, ready: &str) -> Self {
        let (r#type, status) = ("Ready".to_owned(), ready.to_owned());
        let condition = pb::PodCondition { r#type, status, ..Default::default() };
        self.phase("Running").status(|held| held.conditions = vec![condition])
    }
}

impl PodBuilder for pb::Pod {
    fn spec(mut self, change: impl FnOnce(&mut pb::PodSpec)) -> Self {
        change(self.spec.get_or_insert_default());
        self
    }

    fn status(mut self, change: impl FnOnce(&mut pb::PodStatus)) -> Self {
        change(self.status.get_or_insert_default());
        self
    }
}

/// A lease with that holder and duration.
pub fn held(lease: pb::Lease, holder: &str, seconds: i32) -> pb::Lease {
    let spec = pb::LeaseSpec {
        holder_identity: holder.to_owned(),
        lease_duration_seconds: Some(seconds),
        ..lease.spec.unwrap_or_default()
    };
    pb::Lease { spec: Some(spec), ..lease }
}

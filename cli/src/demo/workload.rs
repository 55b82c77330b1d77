//! The demo's workload: a fixed number of pods, as a ReplicaSet would keep it. Pure.
//!
//! Muster has no workload controllers, so the demo creates the pods itself.

use std::collections::BTreeMap;

use muster_proto::meta::{Metadata, OwnerReference};
use muster_proto::name::{Name, Namespace};
use muster_proto::pod::{Container, Pod, PodPhase, PodSpec, PodStatus, ResourceRequirements};
use muster_proto::quantity::Quantity;
use muster_proto::taint::{TaintEffect, Toleration, TolerationOperator};
use muster_proto::wellknown::taint;

use crate::simulation::fleet_spec::SIMULATED;

/// A label of every pod of the demo.
pub(super) const LABEL: &str = "muster.dev/demo";
/// The grace period of a pod, in seconds.
const GRACE: i64 = 1;

/// The pods to keep running.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    pub(super) namespace: Namespace,
    pub(super) replicas: usize,
    /// How many seconds a pod tolerates a node that is unreachable or not ready.
    pub(super) toleration_seconds: i64,
    /// The number of pods created so far, so that no name is used twice.
    pub(super) created: usize,
}

/// Whether a pod counts as a replica: it is not being deleted and has not finished.
pub(super) fn is_active(pod: &Pod) -> bool {
    !pod.meta.is_deleting() && !pod.is_finished()
}

pub(super) fn is_running(pod: &Pod) -> bool {
    is_active(pod) && pod.status.phase == PodPhase::Running && pod.is_ready()
}

impl Workload {
    /// New pods for the replicas that are missing.
    pub(super) fn missing(&mut self, present: &[Pod]) -> Vec<Pod> {
        let count = present.iter().filter(|pod| is_active(pod)).count();
        (count..self.replicas).map(|_| self.new_pod()).collect()
    }

    fn new_pod(&mut self) -> Pod {
        self.created += 1;
        let name: Name =
            format!("work-{}", self.created).parse().expect("work- and a number is a valid name");
        let mut meta = Metadata::new(Some(self.namespace.clone()), name);
        meta.labels.insert(LABEL.to_owned(), "work".to_owned());
        meta.owner_references.push(OwnerReference {
            api_version: "apps/v1".to_owned(),
            kind: "ReplicaSet".to_owned(),
            name: "work".to_owned(),
            uid: "muster-demo".to_owned(),
            controller: true,
            block_owner_deletion: false,
        });
        let requests = [("cpu".to_owned(), Quantity::from_milli(500))].into();
        let container = Container {
            name: "main".to_owned(),
            image: "work".to_owned(),
            resources: ResourceRequirements { requests, ..ResourceRequirements::default() },
            ..Container::default()
        };
        let tolerates = |key: &str| Toleration {
            key: key.to_owned(),
            operator: TolerationOperator::Exists,
            value: String::new(),
            effect: Some(TaintEffect::NoExecute),
            toleration_seconds: Some(self.toleration_seconds),
        };
        let spec = PodSpec {
            node_selector: [(SIMULATED.to_owned(), "true".to_owned())].into(),
            tolerations: vec![tolerates(taint::UNREACHABLE), tolerates(taint::NOT_READY)],
            containers: vec![container],
            termination_grace_period_seconds: Some(GRACE),
            ..PodSpec::default()
        };
        Pod { meta, spec, status: PodStatus::default() }
    }
}

/// The names of the running pods, by node.
pub(super) fn by_node(pods: &[Pod]) -> BTreeMap<String, Vec<String>> {
    let mut nodes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| is_running(pod)) {
        if let Some(node) = &pod.spec.node_name {
            nodes.entry(node.to_string()).or_default().push(pod.meta.name.to_string());
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use muster_proto::pb;

    fn workload() -> Workload {
        Workload { namespace: "default".parse().unwrap(), replicas: 3, toleration_seconds: 4, created: 0 }
    }

    #[test]
    fn a_deleted_pod_is_replaced_by_a_new_one() {
        let mut workload = workload();
        let mut pods = workload.missing(&[]);
        let names = |pods: &[Pod]| pods.iter().map(|pod| pod.meta.name.to_string()).collect::<Vec<_>>();
        assert_eq!(names(&pods), ["work-1", "work-2", "work-3"]);
        assert_eq!(workload.missing(&pods), []);
        pods[1].meta.deletion_timestamp = Some(Timestamp::UNIX_EPOCH);
        assert_eq!(names(&workload.missing(&pods)), ["work-4"]);
    }

    #[test]
    fn a_pod_passes_the_schemas_checks() {
        let pod = workload().new_pod();
        assert_eq!(Pod::try_from(pb::Pod::from(pod.clone())).unwrap(), pod);
        assert!(is_active(&pod) && !is_running(&pod));
    }
}

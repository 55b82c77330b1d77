//! What a pod requires of a node. Pods with equal requirements are interchangeable: a result for one holds for all.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};

use muster_proto::name::Name;
use muster_proto::pb;
use muster_proto::pod::ports::{self, HostPort};
use muster_proto::pod::{PodSpec, requests};
use muster_proto::taint::{Taint, TaintEffect};
use muster_proto::wellknown::taint as keys;

use super::resources::{CpuMemory, ResourceAmounts, non_zero_request};

/// The resources and ports that a pod takes of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct PodRequest {
    pub(crate) amounts: ResourceAmounts,
    /// CPU and memory of `amounts`.
    pub(crate) requested: CpuMemory,
    /// The same with defaults for containers that request none.
    pub(crate) non_zero_requested: CpuMemory,
    pub(crate) ports: Vec<HostPort>,
}

impl PodRequest {
    pub(crate) fn of(spec: &PodSpec) -> PodRequest {
        let asked = requests::of(spec);
        PodRequest {
            amounts: ResourceAmounts::of(&asked),
            requested: CpuMemory::of(&asked),
            non_zero_requested: non_zero_request(spec),
            ports: ports::wanted(spec).collect(),
        }
    }
}

/// Whether both specs have an equal [`PodRequest`], without computing it.
pub(crate) fn has_equal_request(one: &PodSpec, other: &PodSpec) -> bool {
    one.host_network == other.host_network
        && one.overhead == other.overhead
        && one.containers == other.containers
        && one.init_containers == other.init_containers
}

/// Everything that the scheduler reads of a pod.
#[derive(Debug, PartialEq)]
pub(crate) struct PodRequirements {
    pub(crate) request: PodRequest,
    /// Only node name, selector, affinity, tolerations, priority and preemption policy are filled in.
    pub(crate) spec: PodSpec,
    /// Whether the pod may run on a cordoned node.
    pub(crate) tolerates_cordon: bool,
    /// The only nodes that can fit, if the pod's node affinity names them.
    pub(crate) node_names: Option<BTreeSet<Name>>,
}

impl PodRequirements {
    pub(crate) fn of(spec: &PodSpec) -> PodRequirements {
        let request = PodRequest::of(spec);
        let spec = PodSpec {
            node_name: spec.node_name.clone(),
            node_selector: spec.node_selector.clone(),
            affinity: spec.affinity.clone(),
            tolerations: spec.tolerations.clone(),
            priority: spec.priority,
            preemption_policy: spec.preemption_policy,
            ..PodSpec::default()
        };
        let cordon = Taint::new(keys::UNSCHEDULABLE, "", TaintEffect::NoSchedule);
        let tolerates_cordon = spec.tolerations.iter().any(|toleration| toleration.tolerates(&cordon));
        let node_names = node_names(required(&spec));
        PodRequirements { request, spec, tolerates_cordon, node_names }
    }

    pub(crate) fn priority(&self) -> i32 {
        self.spec.priority()
    }

    pub(crate) fn tolerates(&self, taint: &Taint) -> bool {
        self.spec.tolerations.iter().any(|toleration| toleration.tolerates(taint))
    }

    pub(crate) fn preferences(&self) -> &[pb::PreferredSchedulingTerm] {
        let affinity = self.spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        affinity.map_or(&[], |affinity| &affinity.preferred_during_scheduling_ignored_during_execution)
    }
}

fn required(spec: &PodSpec) -> &[pb::NodeSelectorTerm] {
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required =
        affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    required.map_or(&[], |choice| &choice.node_selector_terms)
}

/// The node names that the terms allow, if every term allows only certain names, as in pods of a DaemonSet.
fn node_names(terms: &[pb::NodeSelectorTerm]) -> Option<BTreeSet<Name>> {
    if terms.is_empty() {
        return None;
    }
    let mut names = BTreeSet::new();
    for term in terms {
        let field =
            term.match_fields.iter().find(|field| field.key == "metadata.name" && field.operator == "In")?;
        // A value that is not a valid name is the name of no node.
        names.extend(field.values.iter().filter_map(|name| name.parse::<Name>().ok()));
    }
    Some(names)
}

// Only texts and whole numbers are compared, so equality is reflexive.
impl Eq for PodRequirements {}

impl Hash for PodRequirements {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let PodRequirements { request, spec, tolerates_cordon: _, node_names } = self;
        request.hash(state);
        node_names.hash(state);
        spec.priority.hash(state);
        spec.preemption_policy.hash(state);
        spec.node_selector.hash(state);
        spec.tolerations.len().hash(state);
        for term in required(spec) {
            term.match_expressions.hash(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::fixtures::{pod, wish};

    #[test]
    fn pods_with_equal_requests_are_equal_whatever_they_run() {
        let one = pod("a").requests("cpu=1");
        let other =
            pod("b").requests("cpu=1000m").with(|pod| pod.spec.containers[0].image = "other".to_owned());
        let [one, other] = [one, other].map(|sample| PodRequirements::of(&sample.build().spec));
        assert_eq!(one, other);
        let more = PodRequirements::of(&pod("c").requests("cpu=1001m").build().spec);
        let prior = PodRequirements::of(&pod("d").requests("cpu=1").priority(5).build().spec);
        let picky =
            PodRequirements::of(&pod("e").requests("cpu=1").requires(&[&[wish("zone In a")]]).build().spec);
        let distinct = HashSet::from([one, other, more, prior, picky]);
        assert_eq!(distinct.len(), 4);
    }

    #[test]
    fn the_node_names_are_known_when_every_term_lists_some() {
        let name = |text: &str| wish(&format!("metadata.name In {text}"));
        let required = |terms: &[&[pb::LabelSelectorRequirement]]| {
            let requirements = PodRequirements::of(&pod("a").requires(terms).build().spec);
            requirements
                .node_names
                .map(|names| names.iter().map(Name::to_string).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(required(&[]), None);
        assert_eq!(required(&[&[name("a")]]).as_deref(), Some("a"));
        assert_eq!(required(&[&[name("b"), wish("zone In x")], &[name("a")]]).as_deref(), Some("a b"));
        assert_eq!(required(&[&[name("a")], &[wish("zone In x")]]), None, "the other term allows others");
        assert_eq!(required(&[&[wish("metadata.name NotIn a")]]), None);
        assert_eq!(required(&[&[name("A_b")]]).as_deref(), Some(""), "there is no such node");
    }
}

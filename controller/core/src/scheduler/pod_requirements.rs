//! What a pod asks of a node. Pods that ask the same are interchangeable: what is found out for one holds for all.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};

use muster_proto::name::Name;
use muster_proto::pb;
use muster_proto::pod::ports::{self, HostPort};
use muster_proto::pod::{PodSpec, requests};
use muster_proto::taint::{Taint, TaintEffect};
use muster_proto::wellknown::taint as keys;

use super::resources::{Amounts, Load, load_with_missing};

/// What a pod takes of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Claim {
    pub(crate) amounts: Amounts,
    /// What it asks for.
    pub(crate) load: Load,
    /// The same, as if nothing had been left out.
    pub(crate) filled: Load,
    pub(crate) ports: Vec<HostPort>,
}

impl Claim {
    pub(crate) fn of(spec: &PodSpec) -> Claim {
        let asked = requests::of(spec);
        Claim {
            amounts: Amounts::of(&asked),
            load: Load::of(&asked),
            filled: load_with_missing(spec),
            ports: ports::wanted(spec).collect(),
        }
    }
}

/// Whether the two take the same, without working out what.
pub(crate) fn claims_alike(one: &PodSpec, other: &PodSpec) -> bool {
    one.host_network == other.host_network
        && one.overhead == other.overhead
        && one.containers == other.containers
        && one.init_containers == other.init_containers
}

/// All that placement reads of a pod.
#[derive(Debug, PartialEq)]
pub(crate) struct Demand {
    pub(crate) claim: Claim,
    /// Only node name, selector, affinity, tolerations and priority are filled in.
    pub(crate) spec: PodSpec,
    /// Whether a cordoned node will do.
    pub(crate) bears_cordon: bool,
    /// The only nodes that can do, if the pod names them.
    pub(crate) named: Option<BTreeSet<Name>>,
}

impl Demand {
    pub(crate) fn of(spec: &PodSpec) -> Demand {
        let claim = Claim::of(spec);
        let spec = PodSpec {
            node_name: spec.node_name.clone(),
            node_selector: spec.node_selector.clone(),
            affinity: spec.affinity.clone(),
            tolerations: spec.tolerations.clone(),
            priority: spec.priority,
            ..PodSpec::default()
        };
        let cordon = Taint::new(keys::UNSCHEDULABLE, "", TaintEffect::NoSchedule);
        let bears_cordon = spec.tolerations.iter().any(|toleration| toleration.tolerates(&cordon));
        let named = named(required(&spec));
        Demand { claim, spec, bears_cordon, named }
    }

    pub(crate) fn priority(&self) -> i32 {
        self.spec.priority.unwrap_or(0)
    }

    pub(crate) fn tolerates(&self, taint: &Taint) -> bool {
        self.spec.tolerations.iter().any(|toleration| toleration.tolerates(taint))
    }

    pub(crate) fn preferences(&self) -> &[pb::PreferredSchedulingTerm] {
        let wishes = self.spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        wishes.map_or(&[], |wishes| &wishes.preferred_during_scheduling_ignored_during_execution)
    }
}

fn required(spec: &PodSpec) -> &[pb::NodeSelectorTerm] {
    let wishes = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required =
        wishes.and_then(|wishes| wishes.required_during_scheduling_ignored_during_execution.as_ref());
    required.map_or(&[], |choice| &choice.node_selector_terms)
}

/// The names that the terms allow, if each allows only certain names: so it is with the pods of daemons.
fn named(terms: &[pb::NodeSelectorTerm]) -> Option<BTreeSet<Name>> {
    if terms.is_empty() {
        return None;
    }
    let mut names = BTreeSet::new();
    for term in terms {
        let wish =
            term.match_fields.iter().find(|wish| wish.key == "metadata.name" && wish.operator == "In")?;
        // What is no name is the name of no node.
        names.extend(wish.values.iter().filter_map(|name| name.parse::<Name>().ok()));
    }
    Some(names)
}

// Equality of texts and whole numbers: every demand equals itself.
impl Eq for Demand {}

impl Hash for Demand {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Demand { claim, spec, bears_cordon: _, named } = self;
        claim.hash(state);
        named.hash(state);
        spec.priority.hash(state);
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
    fn pods_that_ask_the_same_are_alike_whatever_they_run() {
        let one = pod("a").requests("cpu=1");
        let other =
            pod("b").requests("cpu=1000m").with(|pod| pod.spec.containers[0].image = "other".to_owned());
        let [one, other] = [one, other].map(|sample| Demand::of(&sample.build().spec));
        assert_eq!(one, other);
        let more = Demand::of(&pod("c").requests("cpu=1001m").build().spec);
        let prior = Demand::of(&pod("d").requests("cpu=1").priority(5).build().spec);
        let picky = Demand::of(&pod("e").requests("cpu=1").requires(&[&[wish("zone In a")]]).build().spec);
        let distinct = HashSet::from([one, other, more, prior, picky]);
        assert_eq!(distinct.len(), 4);
    }

    #[test]
    fn the_nodes_that_a_pod_names_are_known_when_every_term_names_some() {
        let name = |text: &str| wish(&format!("metadata.name In {text}"));
        let required = |terms: &[&[pb::LabelSelectorRequirement]]| {
            let demand = Demand::of(&pod("a").requires(terms).build().spec);
            demand.named.map(|names| names.iter().map(Name::to_string).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(required(&[]), None);
        assert_eq!(required(&[&[name("a")]]).as_deref(), Some("a"));
        assert_eq!(required(&[&[name("b"), wish("zone In x")], &[name("a")]]).as_deref(), Some("a b"));
        assert_eq!(required(&[&[name("a")], &[wish("zone In x")]]), None, "the other term allows others");
        assert_eq!(required(&[&[wish("metadata.name NotIn a")]]), None);
        assert_eq!(required(&[&[name("A_b")]]).as_deref(), Some(""), "there is no such node");
    }
}

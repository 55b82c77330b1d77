//! Node selectors and node affinity: whether a node has the labels and the name that a pod requires.

use crate::label::Labels;
use crate::name::Name;
use crate::pb;
use crate::pod::PodSpec;

/// Whether the pod may run on a node of that name with those labels.
///
/// The node must have every label of the node selector, and match one of the required terms if there are any.
/// Preferences are scored by the scheduler.
pub fn accepts(spec: &PodSpec, node: &Name, labels: &Labels) -> bool {
    let selected = spec.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value));
    let required = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    selected
        && required
            .is_none_or(|choice| choice.node_selector_terms.iter().any(|term| matches(term, node, labels)))
}

/// Whether all requirements of a term hold; a term without requirements matches no node.
pub fn matches(term: &pb::NodeSelectorTerm, node: &Name, labels: &Labels) -> bool {
    let pb::NodeSelectorTerm { match_expressions, match_fields } = term;
    if match_expressions.is_empty() && match_fields.is_empty() {
        return false;
    }
    let by_label = |requirement: &pb::LabelSelectorRequirement| {
        holds(requirement, labels.get(&requirement.key).map(String::as_str))
    };
    let by_field = |requirement: &pb::LabelSelectorRequirement| {
        // metadata.name is the only field that is supported; a requirement on another one never holds.
        requirement.key == "metadata.name" && holds(requirement, Some(node.as_str()))
    };
    match_expressions.iter().all(by_label) && match_fields.iter().all(by_field)
}

fn holds(requirement: &pb::LabelSelectorRequirement, value: Option<&str>) -> bool {
    let listed = value.is_some_and(|value| requirement.values.iter().any(|listed| listed == value));
    match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers(requirement, value).is_some_and(|(found, bound)| found > bound),
        "Lt" => numbers(requirement, value).is_some_and(|(found, bound)| found < bound),
        _ => false,
    }
}

/// The label and the bound as whole numbers, if both are.
fn numbers(requirement: &pb::LabelSelectorRequirement, value: Option<&str>) -> Option<(i64, i64)> {
    let [bound] = requirement.values.as_slice() else {
        return None;
    };
    Some((value?.parse().ok()?, bound.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Labels out of `zone=a disk=ssd`.
    fn labels(text: &str) -> Labels {
        let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    /// A requirement such as `zone In a,b`.
    fn requirement(text: &str) -> pb::LabelSelectorRequirement {
        let mut parts = text.split(' ');
        let mut next = || parts.next().unwrap_or_default().to_owned();
        let (key, operator, values) = (next(), next(), next());
        let values = values.split(',').filter(|value| !value.is_empty()).map(str::to_owned).collect();
        pb::LabelSelectorRequirement { key, operator, values }
    }

    fn term(expressions: &[&str], fields: &[&str]) -> pb::NodeSelectorTerm {
        let requirements = |texts: &[&str]| texts.iter().map(|text| requirement(text)).collect();
        pb::NodeSelectorTerm {
            match_expressions: requirements(expressions),
            match_fields: requirements(fields),
        }
    }

    #[test]
    fn a_term_holds_when_all_of_it_does() {
        let node: Name = "n1".parse().unwrap();
        let labels = labels("zone=a cores=8 odd=x");
        for (expressions, fields, expected) in [
            (&["zone In a,b"][..], &[][..], true),
            (&["zone In b"], &[], false),
            (&["zone NotIn b"], &[], true),
            (&["missing NotIn b"], &[], true),
            (&["missing In b"], &[], false),
            (&["zone Exists"], &[], true),
            (&["missing Exists"], &[], false),
            (&["missing DoesNotExist"], &[], true),
            (&["zone DoesNotExist"], &[], false),
            (&["cores Gt 7"], &[], true),
            (&["cores Gt 8"], &[], false),
            (&["cores Lt 9"], &[], true),
            (&["cores Lt 8"], &[], false),
            (&["odd Gt 1"], &[], false),
            (&["odd Lt 1"], &[], false),
            (&["missing Gt 1"], &[], false),
            (&["cores Like 8"], &[], false),
            (&["zone In a", "cores Gt 7"], &[], true),
            (&["zone In a", "cores Gt 9"], &[], false),
            (&[], &["metadata.name In n1"], true),
            (&[], &["metadata.name NotIn n1"], false),
            (&[], &["metadata.uid In n1"], false),
            (&["zone In a"], &["metadata.name In n2"], false),
            (&[], &[], false),
        ] {
            assert_eq!(
                matches(&term(expressions, fields), &node, &labels),
                expected,
                "{expressions:?} {fields:?}"
            );
        }
    }

    #[test]
    fn the_selector_and_one_of_the_terms_must_match() {
        let node: Name = "n1".parse().unwrap();
        let held = labels("zone=a disk=ssd");
        for (selector, terms, expected) in [
            ("", vec![], true),
            ("zone=a disk=ssd", vec![], true),
            ("zone=a disk=hdd", vec![], false),
            ("zone=a", vec![term(&["disk In hdd"], &[]), term(&["disk In ssd"], &[])], true),
            ("zone=b", vec![term(&["disk In ssd"], &[])], false),
            ("zone=a", vec![term(&["disk In hdd"], &[])], false),
            ("zone=a", vec![term(&[], &[])], false),
        ] {
            let mut spec = PodSpec { node_selector: labels(selector), ..PodSpec::default() };
            if !terms.is_empty() {
                let required = Some(pb::NodeSelector { node_selector_terms: terms.clone() });
                let node_affinity = Some(pb::NodeAffinity {
                    required_during_scheduling_ignored_during_execution: required,
                    ..Default::default()
                });
                spec.affinity = Some(pb::Affinity { node_affinity });
            }
            assert_eq!(accepts(&spec, &node, &held), expected, "{selector:?} {terms:?}");
        }
    }
}

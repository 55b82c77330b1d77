//! Wishes about the node: does this node have the labels and the name that a pod asks for?

use crate::label::Labels;
use crate::name::Name;
use crate::pb;
use crate::pod::PodSpec;

/// Whether a node of that name and those labels is one the pod may run on.
///
/// Every label of the node selector must be there, and one of the required terms must match if there are
/// any. Preferences are the scheduler's business.
pub fn accepts(spec: &PodSpec, node: &Name, labels: &Labels) -> bool {
    let selected = spec.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value));
    let required = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|wishes| wishes.required_during_scheduling_ignored_during_execution.as_ref());
    selected
        && required
            .is_none_or(|choice| choice.node_selector_terms.iter().any(|term| matches(term, node, labels)))
}

/// Whether all requirements of a term hold; a term without any holds nowhere.
pub fn matches(term: &pb::NodeSelectorTerm, node: &Name, labels: &Labels) -> bool {
    let pb::NodeSelectorTerm { match_expressions, match_fields } = term;
    if match_expressions.is_empty() && match_fields.is_empty() {
        return false;
    }
    let by_label =
        |wish: &pb::LabelSelectorRequirement| holds(wish, labels.get(&wish.key).map(String::as_str));
    let by_field = |wish: &pb::LabelSelectorRequirement| {
        // No other field can be asked for, so a wish about one is a wish nobody grants.
        wish.key == "metadata.name" && holds(wish, Some(node.as_str()))
    };
    match_expressions.iter().all(by_label) && match_fields.iter().all(by_field)
}

fn holds(wish: &pb::LabelSelectorRequirement, value: Option<&str>) -> bool {
    let listed = value.is_some_and(|value| wish.values.iter().any(|listed| listed == value));
    match wish.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers(wish, value).is_some_and(|(found, bound)| found > bound),
        "Lt" => numbers(wish, value).is_some_and(|(found, bound)| found < bound),
        _ => false,
    }
}

/// The label and the bound as whole numbers, if both are.
fn numbers(wish: &pb::LabelSelectorRequirement, value: Option<&str>) -> Option<(i64, i64)> {
    let [bound] = wish.values.as_slice() else {
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

    /// A wish such as `zone In a,b`.
    fn wish(text: &str) -> pb::LabelSelectorRequirement {
        let mut parts = text.split(' ');
        let mut next = || parts.next().unwrap_or_default().to_owned();
        let (key, operator, values) = (next(), next(), next());
        let values = values.split(',').filter(|value| !value.is_empty()).map(str::to_owned).collect();
        pb::LabelSelectorRequirement { key, operator, values }
    }

    fn term(expressions: &[&str], fields: &[&str]) -> pb::NodeSelectorTerm {
        let wishes = |texts: &[&str]| texts.iter().map(|text| wish(text)).collect();
        pb::NodeSelectorTerm { match_expressions: wishes(expressions), match_fields: wishes(fields) }
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

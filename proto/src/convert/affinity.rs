//! Node affinity: validated here, stored as the schema's messages.

use crate::invalid::{Check, Path};
use crate::label::{check_label_key, check_label_value};
use crate::pb;

pub(super) fn check_affinity(check: &mut Check, path: &Path<'_>, affinity: &pb::Affinity) {
    let pb::Affinity { node_affinity } = affinity;
    let Some(pb::NodeAffinity {
        required_during_scheduling_ignored_during_execution: required,
        preferred_during_scheduling_ignored_during_execution: preferred,
    }) = node_affinity
    else {
        return;
    };
    let path = path.key("nodeAffinity");
    if let Some(pb::NodeSelector { node_selector_terms }) = required {
        let path = path.key("requiredDuringSchedulingIgnoredDuringExecution");
        let path = path.key("nodeSelectorTerms");
        check.ensure(&path, !node_selector_terms.is_empty(), "must hold at least one term");
        for (i, term) in node_selector_terms.iter().enumerate() {
            check_term(check, &path.index(i), term);
        }
    }
    let path = path.key("preferredDuringSchedulingIgnoredDuringExecution");
    for (i, pb::PreferredSchedulingTerm { weight, preference }) in preferred.iter().enumerate() {
        let path = path.index(i);
        check.ensure(&path.key("weight"), (1..=100).contains(weight), "must be from 1 to 100");
        if let Some(term) = check.required(&path.key("preference"), preference.as_ref()) {
            check_term(check, &path.key("preference"), term);
        }
    }
}

fn check_term(check: &mut Check, path: &Path<'_>, term: &pb::NodeSelectorTerm) {
    let pb::NodeSelectorTerm { match_expressions, match_fields } = term;
    for (i, requirement) in match_expressions.iter().enumerate() {
        check_expression(check, &path.key("matchExpressions").index(i), requirement);
    }
    for (i, requirement) in match_fields.iter().enumerate() {
        check_field(check, &path.key("matchFields").index(i), requirement);
    }
}

fn check_expression(check: &mut Check, path: &Path<'_>, requirement: &pb::LabelSelectorRequirement) {
    let pb::LabelSelectorRequirement { key, operator, values } = requirement;
    check.field(&path.key("key"), check_label_key(key));
    let path_of_values = path.key("values");
    match operator.as_str() {
        "In" | "NotIn" => {
            check.ensure(&path_of_values, !values.is_empty(), "must hold at least one value");
            for (i, value) in values.iter().enumerate() {
                check.field(&path_of_values.index(i), check_label_value(value));
            }
        }
        "Exists" | "DoesNotExist" => {
            check.ensure(&path_of_values, values.is_empty(), "must be empty with this operator");
        }
        "Gt" | "Lt" => {
            let is_number = matches!(values.as_slice(), [value] if value.parse::<i64>().is_ok());
            check.ensure(&path_of_values, is_number, "must be one whole number with this operator");
        }
        _ => check.fail(&path.key("operator"), "must be In, NotIn, Exists, DoesNotExist, Gt or Lt"),
    }
}

fn check_field(check: &mut Check, path: &Path<'_>, requirement: &pb::LabelSelectorRequirement) {
    let pb::LabelSelectorRequirement { key, operator, values } = requirement;
    check.ensure(&path.key("key"), key == "metadata.name", "must be metadata.name");
    check.ensure(&path.key("operator"), matches!(operator.as_str(), "In" | "NotIn"), "must be In or NotIn");
    check.ensure(&path.key("values"), values.len() == 1, "must be one name");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(key: &str, operator: &str, values: &[&str]) -> pb::LabelSelectorRequirement {
        let values = values.iter().map(ToString::to_string).collect();
        pb::LabelSelectorRequirement { key: key.into(), operator: operator.into(), values }
    }

    /// The fields that are wrong, with the two long names in short.
    fn wrong(terms: Vec<pb::NodeSelectorTerm>, preferred: Vec<pb::PreferredSchedulingTerm>) -> Vec<String> {
        let required = Some(pb::NodeSelector { node_selector_terms: terms });
        let node_affinity = Some(pb::NodeAffinity {
            required_during_scheduling_ignored_during_execution: required,
            preferred_during_scheduling_ignored_during_execution: preferred,
        });
        let mut check = Check::new();
        check_affinity(&mut check, &Path::ROOT, &pb::Affinity { node_affinity });
        let violations = check.finish(()).err().map(|invalid| invalid.violations).unwrap_or_default();
        let shorten = |field: String| {
            let field = field.replace("nodeAffinity.", "");
            field.replace("DuringSchedulingIgnoredDuringExecution", "")
        };
        violations.into_iter().map(|violation| shorten(violation.field)).collect()
    }

    #[test]
    fn affinity_is_checked_term_by_term() {
        let right = pb::NodeSelectorTerm {
            match_expressions: vec![
                wish("zone", "In", &["a", ""]),
                wish("cores", "Gt", &["-4"]),
                wish("old", "DoesNotExist", &[]),
            ],
            match_fields: vec![wish("metadata.name", "NotIn", &["a"])],
        };
        let faulty = pb::NodeSelectorTerm {
            match_expressions: vec![
                wish("a b", "In", &[]),
                wish("a", "Exists", &["b"]),
                wish("a", "Lt", &["many"]),
                wish("a", "in", &[]),
                wish("a", "NotIn", &["b", "c d"]),
            ],
            match_fields: vec![wish("metadata.uid", "Exists", &[])],
        };
        let preferred = |weight, preference| pb::PreferredSchedulingTerm { weight, preference };
        assert!(wrong(vec![right.clone()], vec![preferred(100, Some(right.clone()))]).is_empty());
        assert_eq!(
            wrong(vec![right, faulty], vec![preferred(0, None)]),
            [
                "required.nodeSelectorTerms[1].matchExpressions[0].key",
                "required.nodeSelectorTerms[1].matchExpressions[0].values",
                "required.nodeSelectorTerms[1].matchExpressions[1].values",
                "required.nodeSelectorTerms[1].matchExpressions[2].values",
                "required.nodeSelectorTerms[1].matchExpressions[3].operator",
                "required.nodeSelectorTerms[1].matchExpressions[4].values[1]",
                "required.nodeSelectorTerms[1].matchFields[0].key",
                "required.nodeSelectorTerms[1].matchFields[0].operator",
                "required.nodeSelectorTerms[1].matchFields[0].values",
                "preferred[0].weight",
                "preferred[0].preference",
            ]
        );
        assert_eq!(wrong(Vec::new(), Vec::new()), ["required.nodeSelectorTerms"]);
    }
}

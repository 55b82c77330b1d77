//! Label selectors given as `match_labels` and `match_expressions`.

use std::collections::BTreeMap;

use crate::invalid::{Check, Path};
use crate::pb;
use crate::selector::{LabelSelector, Operator, Requirement};

pub(super) fn selector_in(
    check: &mut Check,
    path: &Path<'_>,
    selector: pb::LabelSelector,
) -> Option<LabelSelector> {
    let pb::LabelSelector { match_labels, match_expressions } = selector;
    for (key, value) in &match_labels {
        let pair = Requirement::new(key, Operator::In, [value.as_str()]);
        check.field(&path.key("matchLabels").entry(key), pair);
    }
    let expressions = check.each(&path.key("matchExpressions"), match_expressions, |check, path, given| {
        let pb::LabelSelectorRequirement { key, operator, values } = given;
        let operator = check.field(&path.key("operator"), operator.parse())?;
        check.field(path, Requirement::new(&key, operator, values.iter().map(String::as_str)))
    });
    // The pairs were reported one by one above.
    LabelSelector::from_parts(&match_labels, expressions).ok()
}

impl From<LabelSelector> for pb::LabelSelector {
    fn from(selector: LabelSelector) -> Self {
        let mut match_labels = BTreeMap::new();
        let mut match_expressions = Vec::new();
        for requirement in selector.requirements() {
            // Equality requirements come first, ordered by key; they go back into `match_labels`.
            let follows = match_expressions.is_empty()
                && match_labels
                    .last_key_value()
                    .is_none_or(|(last, _): (&String, _)| last.as_str() < requirement.key());
            match pair(requirement) {
                Some(value) if follows => {
                    match_labels.insert(requirement.key().to_owned(), value);
                }
                _ => match_expressions.push(pb::LabelSelectorRequirement {
                    key: requirement.key().to_owned(),
                    operator: requirement.operator().to_string(),
                    values: requirement.values().iter().cloned().collect(),
                }),
            }
        }
        Self { match_labels, match_expressions }
    }
}

/// The value of a requirement that is equivalent to `key=value`.
fn pair(requirement: &Requirement) -> Option<String> {
    let mut values = requirement.values().iter();
    match (requirement.operator(), values.next(), values.next()) {
        (Operator::In, Some(value), None) => Some(value.clone()),
        _ => None,
    }
}

//! How values compare, in filters and for `--sort-by`.

use std::cmp::Ordering;

use muster_proto::quantity::Quantity;
use serde_json::Value;

use crate::print::natural;

/// The number of a value. Large numbers are texts in our JSON, so a text that is a number counts as one.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.parse().ok().filter(|number: &f64| number.is_finite()),
        _ => None,
    }
}

pub(super) fn equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::String(left), Value::String(right)) => left == right,
        _ => match (number(left), number(right)) {
            (Some(left), Some(right)) => left == right,
            _ => left == right,
        },
    }
}

pub(super) fn is_less(left: &Value, right: &Value) -> bool {
    match (number(left), number(right)) {
        (Some(left), Some(right)) => left < right,
        _ => match (left, right) {
            (Value::String(left), Value::String(right)) => left < right,
            _ => false,
        },
    }
}

/// The order of `--sort-by`: what is missing first, numbers and quantities by value, texts naturally (n2 before n10).
pub(crate) fn compare(left: Option<&Value>, right: Option<&Value>) -> Ordering {
    match (left, right) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Less,
        (Some(_), None) => Ordering::Greater,
        (Some(left), Some(right)) => compare_values(left, right),
    }
}

fn compare_values(left: &Value, right: &Value) -> Ordering {
    match (SortKey::of(left), SortKey::of(right)) {
        (SortKey::Text(left), SortKey::Text(right)) => natural::compare(&left, &right),
        (left, right) => left.partial_cmp(&right).unwrap_or(Ordering::Equal),
    }
}

/// What a value is sorted by. Values of different kinds have an order too, since sorting needs one.
#[derive(PartialEq, PartialOrd)]
enum SortKey {
    Bool(bool),
    /// A number, or a quantity such as `16Gi`.
    Amount(Quantity),
    Text(String),
}

impl SortKey {
    fn of(value: &Value) -> SortKey {
        let text = match value {
            Value::Bool(is) => return SortKey::Bool(*is),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        text.parse().map_or_else(|_| SortKey::Text(text), SortKey::Amount)
    }
}

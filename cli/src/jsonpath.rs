//! JSONPath templates as kubectl has them, for `-o jsonpath=`, `-o custom-columns=`, `--sort-by` and `wait --for`.
//!
//! This is kubectl's dialect and not RFC 9535: a template has text outside of braces, and inside of them paths, quoted
//! text, and `range` with `end`. A path that finds nothing prints nothing.

mod order;
mod parse;
#[cfg(test)]
mod tests;

use serde_json::Value;

pub(crate) use self::order::compare;
use self::order::{equal, is_less};

/// A template: text and paths in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Template(Vec<Part>);

/// One path, as `--sort-by` and columns have it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Path {
    start: Start,
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    Path(Path),
    /// The parts for each value that the path finds.
    Range(Path, Vec<Part>),
}

/// Where a path starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// `$`: the whole document.
    Root,
    /// `@` or nothing: the current value of a range or filter, else the whole document.
    Current,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    /// `*`: all fields of an object or all items of a list.
    All,
    /// `..`: the value itself and everything below it.
    Descend,
    Item(i64),
    Slice {
        from: Option<i64>,
        to: Option<i64>,
        by: i64,
    },
    /// `[a,b]`: what any of these finds, in order.
    Union(Vec<Step>),
    Filter(Box<Filter>),
}

/// `[?(...)]`: the items of a list for which this holds.
#[derive(Clone, Debug, PartialEq)]
enum Filter {
    Exists(Operand),
    Compare(Operand, Comparison, Operand),
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Path(Path),
    Value(Value),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Template {
    /// The text of the template for a document.
    pub(crate) fn render(&self, document: &Value) -> String {
        let mut text = String::new();
        render(&self.0, document, document, &mut text);
        text
    }
}

fn render(parts: &[Part], root: &Value, current: &Value, text: &mut String) {
    for part in parts {
        match part {
            Part::Text(literal) => text.push_str(literal),
            Part::Path(path) => text.push_str(&joined(&path.find_in(root, current), " ")),
            Part::Range(path, parts) => {
                for value in path.find_in(root, current) {
                    render(parts, root, value, text);
                }
            }
        }
    }
}

/// The values as text, with a separator between them.
pub(crate) fn joined(values: &[&Value], separator: &str) -> String {
    let texts: Vec<String> = values.iter().map(|value| text(value)).collect();
    texts.join(separator)
}

/// A text as it is, everything else as JSON on one line.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

impl Path {
    /// The values that the path finds in a document.
    pub(crate) fn find<'a>(&self, document: &'a Value) -> Vec<&'a Value> {
        self.find_in(document, document)
    }

    fn find_in<'a>(&self, root: &'a Value, current: &'a Value) -> Vec<&'a Value> {
        let start = match self.start {
            Start::Root => root,
            Start::Current => current,
        };
        let found = vec![start];
        self.steps
            .iter()
            .fold(found, |found, step| found.into_iter().flat_map(|value| step.apply(root, value)).collect())
    }
}

impl Step {
    fn apply<'a>(&self, root: &'a Value, value: &'a Value) -> Vec<&'a Value> {
        match self {
            Step::Field(name) => field(value, name).into_iter().collect(),
            Step::All => children(value).collect(),
            Step::Descend => descendants(value),
            Step::Item(index) => item(value, *index).into_iter().collect(),
            Step::Slice { from, to, by } => slice(value, *from, *to, *by),
            Step::Union(steps) => steps.iter().flat_map(|step| step.apply(root, value)).collect(),
            Step::Filter(filter) => match value {
                Value::Array(items) => items.iter().filter(|item| filter.holds(root, item)).collect(),
                _ => Vec::new(),
            },
        }
    }
}

/// A field by its name. Kubernetes writes `podCIDR` and `providerID` where our JSON has `podCidr` and `providerId`: a
/// name that is not found is searched again without regard to case.
fn field<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    let fields = value.as_object()?;
    let any_case = || fields.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value);
    fields.get(name).or_else(any_case)
}

fn children(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(fields) => Box::new(fields.values()),
        _ => Box::new(std::iter::empty()),
    }
}

fn descendants(value: &Value) -> Vec<&Value> {
    let mut found = vec![value];
    for child in children(value) {
        found.extend(descendants(child));
    }
    found
}

/// An item of a list; a negative index counts from the end.
fn item(value: &Value, index: i64) -> Option<&Value> {
    let items = value.as_array()?;
    let index = if index < 0 { index + items.len() as i64 } else { index };
    usize::try_from(index).ok().and_then(|index| items.get(index))
}

fn slice(value: &Value, from: Option<i64>, to: Option<i64>, by: i64) -> Vec<&Value> {
    let Value::Array(items) = value else { return Vec::new() };
    let count = items.len() as i64;
    let place = |index: i64| (if index < 0 { index + count } else { index }).clamp(0, count) as usize;
    let (from, to) = (place(from.unwrap_or(0)), place(to.unwrap_or(count)));
    let by = usize::try_from(by).unwrap_or(1).max(1);
    items.get(from..to).unwrap_or_default().iter().step_by(by).collect()
}

impl Filter {
    fn holds(&self, root: &Value, item: &Value) -> bool {
        match self {
            Filter::Exists(operand) => operand.value(root, item).is_some(),
            Filter::Compare(left, comparison, right) => {
                match (left.value(root, item), right.value(root, item)) {
                    (Some(left), Some(right)) => comparison.holds(left, right),
                    // As in kubectl: nothing compares to a value that is missing.
                    _ => false,
                }
            }
        }
    }
}

impl Operand {
    fn value<'a>(&'a self, root: &'a Value, item: &'a Value) -> Option<&'a Value> {
        match self {
            Operand::Value(value) => Some(value),
            Operand::Path(path) => path.find_in(root, item).into_iter().next(),
        }
    }
}

impl Comparison {
    fn holds(self, left: &Value, right: &Value) -> bool {
        match self {
            Comparison::Equal => equal(left, right),
            Comparison::NotEqual => !equal(left, right),
            Comparison::Less => is_less(left, right),
            Comparison::Greater => is_less(right, left),
            Comparison::LessOrEqual => is_less(left, right) || equal(left, right),
            Comparison::GreaterOrEqual => is_less(right, left) || equal(left, right),
        }
    }
}

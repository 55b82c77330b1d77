//! Label selectors: which records a list, a watch or a disruption budget selects.
//!
//! A selector is a text (`zone=a,tier in (x,y),!spare`) or a message; both become the same requirements, all of which
//! must hold. The empty selector matches every record. Field selectors are in [`field`].

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::invalid::Quoted;
use crate::label::{LabelError, Labels, check_label_key, check_label_value};

pub mod field;
mod parse;
#[cfg(test)]
mod tests;

pub use field::{FieldSelector, FieldSelectorError};

/// Requirements on labels, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

/// A requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    key: String,
    operator: Operator,
    values: BTreeSet<String>,
}

/// The operator of a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// The label is present with one of the values.
    In,
    /// The label is absent, or has none of the values.
    NotIn,
    Exists,
    DoesNotExist,
}

/// Why a text or a set of parts is not a label selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    #[error("is not a label selector: expected {expected} but found {found}")]
    Unexpected { expected: &'static str, found: String },
    #[error("names the label {}: a label key {reason}", Quoted(.key))]
    Key { key: String, reason: LabelError },
    #[error("asks for {key} to be {}: a label value {reason}", Quoted(.value))]
    Value { key: String, value: String, reason: LabelError },
    #[error("must give {key} at least one value with {operator}")]
    NoValues { key: String, operator: Operator },
    #[error("must give {key} no values with {operator}")]
    Values { key: String, operator: Operator },
}

/// The text is not an operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be In, NotIn, Exists or DoesNotExist")]
pub struct OperatorError;

impl LabelSelector {
    /// The selector that matches every record.
    pub const fn everything() -> Self {
        Self { requirements: Vec::new() }
    }

    /// A selector of labels that must be equal and further requirements.
    pub fn from_parts(
        match_labels: &Labels,
        expressions: impl IntoIterator<Item = Requirement>,
    ) -> Result<Self, SelectorError> {
        let equal =
            match_labels.iter().map(|(key, value)| Requirement::new(key, Operator::In, [value.as_str()]));
        let mut requirements = equal.collect::<Result<Vec<_>, _>>()?;
        requirements.extend(expressions);
        Ok(Self { requirements })
    }

    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Whether this selects every record.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(labels))
    }
}

impl Requirement {
    /// A checked requirement: In and NotIn need values, Exists and DoesNotExist take none.
    pub fn new<'a>(
        key: &str,
        operator: Operator,
        values: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, SelectorError> {
        let key = key.to_owned();
        if let Err(reason) = check_label_key(&key) {
            return Err(SelectorError::Key { key, reason });
        }
        let values: BTreeSet<String> = values.into_iter().map(str::to_owned).collect();
        match (operator, values.is_empty()) {
            (Operator::In | Operator::NotIn, true) => return Err(SelectorError::NoValues { key, operator }),
            (Operator::Exists | Operator::DoesNotExist, false) => {
                return Err(SelectorError::Values { key, operator });
            }
            _ => {}
        }
        for value in &values {
            if let Err(reason) = check_label_value(value) {
                return Err(SelectorError::Value { key, value: value.clone(), reason });
            }
        }
        Ok(Self { key, operator, values })
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn operator(&self) -> Operator {
        self.operator
    }

    pub fn values(&self) -> &BTreeSet<String> {
        &self.values
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        let listed = value.is_some_and(|value| self.values.contains(value));
        match self.operator {
            Operator::In => listed,
            Operator::NotIn => !listed,
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

impl FromStr for LabelSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        Ok(Self { requirements: parse::requirements(text)? })
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            write!(f, "{}{requirement}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, operator, values } = self;
        let mut only = values.iter();
        match (operator, only.next(), only.next()) {
            (Operator::Exists, ..) => f.write_str(key),
            (Operator::DoesNotExist, ..) => write!(f, "!{key}"),
            (Operator::In, Some(value), None) => write!(f, "{key}={value}"),
            (Operator::NotIn, Some(value), None) => write!(f, "{key}!={value}"),
            (Operator::In, ..) => write!(f, "{key} in ({})", Commas(values)),
            (Operator::NotIn, ..) => write!(f, "{key} notin ({})", Commas(values)),
        }
    }
}

struct Commas<'a>(&'a BTreeSet<String>);

impl fmt::Display for Commas<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, value) in self.0.iter().enumerate() {
            write!(f, "{}{value}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::In => "In",
            Self::NotIn => "NotIn",
            Self::Exists => "Exists",
            Self::DoesNotExist => "DoesNotExist",
        })
    }
}

impl FromStr for Operator {
    type Err = OperatorError;

    fn from_str(text: &str) -> Result<Self, OperatorError> {
        match text {
            "In" => Ok(Self::In),
            "NotIn" => Ok(Self::NotIn),
            "Exists" => Ok(Self::Exists),
            "DoesNotExist" => Ok(Self::DoesNotExist),
            _ => Err(OperatorError),
        }
    }
}

//! Field selectors: `metadata.name=x,spec.nodeName!=y`, over the few fields a kind offers.
//!
//! The caller passes the supported fields. A selector on another field is an error that names it, so that a typing
//! error never selects every record.

use std::fmt;

use crate::invalid::Quoted;

/// Comparisons of fields with values, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    terms: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    field: &'static str,
    equal: bool,
    value: String,
}

/// Why a text is not a field selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldSelectorError {
    #[error("is not a field selector: expected field=value or field!=value but found {found}")]
    NoComparison { found: String },
    #[error("selects by {field}; the fields to select by are {}", .supported.join(", "))]
    Unsupported { field: String, supported: Vec<&'static str> },
}

impl FieldSelector {
    /// The selector that matches every record.
    pub const fn everything() -> Self {
        Self { terms: Vec::new() }
    }

    /// The selector for `field=value`.
    pub fn equal(field: &'static str, value: impl Into<String>) -> Self {
        Self { terms: vec![Term { field, equal: true, value: value.into() }] }
    }

    /// Parses a selector over the `supported` fields; blank text is the empty selector.
    pub fn parse(text: &str, supported: &[&'static str]) -> Result<Self, FieldSelectorError> {
        if text.trim().is_empty() {
            return Ok(Self::everything());
        }
        let terms = text.split(',').map(|term| Term::parse(term.trim(), supported));
        Ok(Self { terms: terms.collect::<Result<_, _>>()? })
    }

    /// Whether this selects every record.
    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    /// The value that `field` must be equal to, if the selector requires one.
    pub fn requires(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|term| term.equal && term.field == field).map(|term| term.value.as_str())
    }

    /// Whether the record whose fields `value_of` reads is selected.
    pub fn matches<V: AsRef<str>>(&self, value_of: impl Fn(&'static str) -> V) -> bool {
        self.terms.iter().all(|term| (value_of(term.field).as_ref() == term.value) == term.equal)
    }
}

impl Term {
    fn parse(text: &str, supported: &[&'static str]) -> Result<Self, FieldSelectorError> {
        let no_comparison = || FieldSelectorError::NoComparison { found: Quoted(text).to_string() };
        let (left, right) = text.split_once('=').ok_or_else(no_comparison)?;
        let (field, equal, value) = match (left.strip_suffix('!'), right.strip_prefix('=')) {
            (Some(field), _) => (field, false, right),
            (None, Some(value)) => (left, true, value),
            (None, None) => (left, true, right),
        };
        let (field, value) = (field.trim(), value.trim());
        if field.is_empty() || value.contains(['=', '!']) {
            return Err(no_comparison());
        }
        match supported.iter().find(|&&known| known == field) {
            Some(&field) => Ok(Self { field, equal, value: value.to_owned() }),
            None => Err(FieldSelectorError::Unsupported {
                field: Quoted(field).to_string(),
                supported: supported.to_vec(),
            }),
        }
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Term { field, equal, value }) in self.terms.iter().enumerate() {
            let (comma, operator) = (if i == 0 { "" } else { "," }, if *equal { "=" } else { "!=" });
            write!(f, "{comma}{field}{operator}{value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: [&str; 2] = ["metadata.name", "spec.nodeName"];

    fn parse(text: &str) -> Result<FieldSelector, String> {
        FieldSelector::parse(text, &POD).map_err(|error| error.to_string())
    }

    #[test]
    fn fields_are_compared_with_values() {
        let pod = |field: &str| if field == "metadata.name" { "p1" } else { "" };
        for (text, matches, pinned) in [
            ("", true, None),
            ("  ", true, None),
            ("metadata.name=p1", true, Some("p1")),
            ("metadata.name==p1", true, Some("p1")),
            (" metadata.name = p1 , spec.nodeName = ", true, Some("p1")),
            ("metadata.name=p2", false, Some("p2")),
            ("metadata.name!=p1", false, None),
            ("metadata.name!=p2", true, None),
            ("spec.nodeName=", true, None),
            ("spec.nodeName!=", false, None),
            ("metadata.name=p1,spec.nodeName=n1", false, Some("p1")),
            ("metadata.name=p1,metadata.name=p2", false, Some("p1")),
        ] {
            let selector = parse(text).unwrap();
            assert_eq!(selector.matches(pod), matches, "{text:?}");
            assert_eq!(selector.requires("metadata.name"), pinned, "{text:?}");
            assert_eq!(parse(&selector.to_string()).as_ref(), Ok(&selector), "{text:?}");
        }
    }

    #[test]
    fn an_unsupported_field_is_named() {
        for (text, reason) in [
            (
                "spec.color=red",
                r#"selects by "spec.color"; the fields to select by are metadata.name, spec.nodeName"#,
            ),
            (
                "metadata.name",
                r#"is not a field selector: expected field=value or field!=value but found "metadata.name""#,
            ),
            (
                "metadata.name=a,",
                r#"is not a field selector: expected field=value or field!=value but found """#,
            ),
            ("=a", r#"is not a field selector: expected field=value or field!=value but found "=a""#),
            (
                "metadata.name=a=b",
                r#"is not a field selector: expected field=value or field!=value but found "metadata.name=a=b""#,
            ),
        ] {
            assert_eq!(parse(text), Err(reason.to_owned()), "{text:?}");
        }
    }
}

//! Labels and annotations: the rules their keys and values follow.
//!
//! A key is a name, or a DNS prefix and a name (`example.com/rack`). Keys and values of labels are short because
//! selectors match on them; annotations may have any value, within a limit for all of a record's annotations.

use std::collections::BTreeMap;

use crate::invalid::{Check, Path};
use crate::name::{NameError, check_subdomain};

/// Labels by key, in the order they are listed and compared.
pub type Labels = BTreeMap<String, String>;
/// Annotations by key.
pub type Annotations = BTreeMap<String, String>;

/// The longest label value, and the longest part of a key after the `/`.
pub const MAX_PART: usize = 63;
/// The maximum size of all annotation keys and values of one record.
pub const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

/// Why a text is not a label key or value; the text continues after the name of the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    #[error("must be a name or prefix/name, with one '/' at most")]
    Slashes,
    #[error("has an invalid prefix: what stands before '/' {0}")]
    Prefix(NameError),
    #[error("must have a name that is not empty")]
    NoName,
    #[error("must have a name of {MAX_PART} bytes or fewer")]
    NameTooLong,
    #[error(
        "must have a name of letters, digits, '-', '_' and '.' that starts and ends with a letter or digit"
    )]
    NameShape,
    #[error("must be {MAX_PART} bytes or fewer")]
    ValueTooLong,
    #[error(
        "must be empty, or of letters, digits, '-', '_' and '.', starting and ending with a letter or digit"
    )]
    ValueShape,
}

/// A key split into its parts; not validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelKey<'a> {
    /// The text before the first `/`, if there is one.
    pub prefix: Option<&'a str>,
    pub name: &'a str,
}

impl<'a> LabelKey<'a> {
    pub fn split(key: &'a str) -> Self {
        match key.split_once('/') {
            Some((prefix, name)) => Self { prefix: Some(prefix), name },
            None => Self { prefix: None, name: key },
        }
    }

    /// Whether the prefix is `domain` or a subdomain of it.
    pub fn is_under(&self, domain: &str) -> bool {
        self.prefix.and_then(|prefix| prefix.strip_suffix(domain)).is_some_and(|rest| {
            // `node-role.kubernetes.io` ends in `role.kubernetes.io` but is not under it.
            rest.is_empty() || rest.ends_with('.')
        })
    }
}

/// Checks the key of a label, a taint or a toleration.
pub fn check_label_key(key: &str) -> Result<(), LabelError> {
    let LabelKey { prefix, name } = LabelKey::split(key);
    if name.contains('/') {
        return Err(LabelError::Slashes);
    }
    if let Some(prefix) = prefix {
        check_subdomain(prefix).map_err(LabelError::Prefix)?;
    }
    match name.len() {
        0 => Err(LabelError::NoName),
        len if len > MAX_PART => Err(LabelError::NameTooLong),
        _ if !has_label_shape(name) => Err(LabelError::NameShape),
        _ => Ok(()),
    }
}

/// Checks the key of an annotation: a label key whose prefix may be in any case.
pub fn check_annotation_key(key: &str) -> Result<(), LabelError> {
    if key.bytes().any(|byte| byte.is_ascii_uppercase()) {
        check_label_key(&key.to_ascii_lowercase())
    } else {
        check_label_key(key)
    }
}

/// Checks the value of a label, a taint or a toleration.
pub fn check_label_value(value: &str) -> Result<(), LabelError> {
    match value.len() {
        0 => Ok(()),
        len if len > MAX_PART => Err(LabelError::ValueTooLong),
        _ if !has_label_shape(value) => Err(LabelError::ValueShape),
        _ => Ok(()),
    }
}

fn has_label_shape(text: &str) -> bool {
    let alphanumeric = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    alphanumeric(bytes.first())
        && alphanumeric(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

/// Reports every label that breaks a rule.
pub fn check_labels(check: &mut Check, path: &Path<'_>, labels: &Labels) {
    for (key, value) in labels {
        check.field(&path.entry(key), check_label_key(key).map_err(|error| format!("the key {error}")));
        check.field(&path.entry(key), check_label_value(value).map_err(|error| format!("the value {error}")));
    }
}

/// Reports every annotation whose key breaks a rule, and too many bytes in all.
pub fn check_annotations(check: &mut Check, path: &Path<'_>, annotations: &Annotations) {
    for key in annotations.keys() {
        check.field(&path.entry(key), check_annotation_key(key).map_err(|error| format!("the key {error}")));
    }
    let bytes: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    check.ensure(
        path,
        bytes <= MAX_ANNOTATION_BYTES,
        format_args!("must be {MAX_ANNOTATION_BYTES} bytes or fewer in all, keys and values together"),
    );
}

#[cfg(test)]
mod tests {
    use super::LabelError::*;
    use super::*;

    fn reported(check: impl FnOnce(&mut Check)) -> String {
        let mut collected = Check::new();
        check(&mut collected);
        collected.finish(()).map_or_else(|invalid| invalid.to_string(), |()| String::new())
    }

    #[test]
    fn a_label_key_is_a_name_with_at_most_one_prefix() {
        let prefix = |len| "p".repeat(len);
        let name = |len| "n".repeat(len);
        for (key, expected) in [
            ("a".to_owned(), Ok(())),
            ("A-b_c.D9".to_owned(), Ok(())),
            ("kubernetes.io/hostname".to_owned(), Ok(())),
            (format!("{}/{}", prefix(253), name(63)), Ok(())),
            (format!("{}/{}", prefix(254), name(63)), Err(Prefix(NameError::TooLong { limit: 253 }))),
            (format!("{}/{}", prefix(253), name(64)), Err(NameTooLong)),
            (name(64), Err(NameTooLong)),
            (String::new(), Err(NoName)),
            ("a/".to_owned(), Err(NoName)),
            ("/x".to_owned(), Err(Prefix(NameError::Empty))),
            ("a/b/c".to_owned(), Err(Slashes)),
            ("a//c".to_owned(), Err(Slashes)),
            ("Upper.io/x".to_owned(), Err(Prefix(NameError::NotInName { found: 'U' }))),
            ("-a".to_owned(), Err(NameShape)),
            ("a.".to_owned(), Err(NameShape)),
            ("a b".to_owned(), Err(NameShape)),
            ("é".to_owned(), Err(NameShape)),
        ] {
            assert_eq!(check_label_key(&key), expected, "{key:?}");
        }
    }

    #[test]
    fn an_annotation_key_may_have_its_prefix_in_any_case() {
        assert_eq!(check_annotation_key("Upper.io/X"), Ok(()));
        assert_eq!(check_annotation_key("Upper.io/"), Err(NoName));
    }

    #[test]
    fn a_label_value_is_short_and_may_be_empty() {
        for (value, expected) in [
            (String::new(), Ok(())),
            ("v".repeat(63), Ok(())),
            ("v".repeat(64), Err(ValueTooLong)),
            ("a_b-C.9".to_owned(), Ok(())),
            ("_a".to_owned(), Err(ValueShape)),
            ("a/b".to_owned(), Err(ValueShape)),
        ] {
            assert_eq!(check_label_value(&value), expected, "{value:?}");
        }
    }

    #[test]
    fn a_key_is_under_its_own_domain_and_the_domains_above() {
        for (key, domain, expected) in [
            ("node.kubernetes.io/x", "node.kubernetes.io", true),
            ("foo.node.kubernetes.io/x", "node.kubernetes.io", true),
            ("node-role.kubernetes.io/x", "role.kubernetes.io", false),
            ("node-role.kubernetes.io/x", "kubernetes.io", true),
            ("kubernetes.io", "kubernetes.io", false),
            ("mykubernetes.io/x", "kubernetes.io", false),
        ] {
            assert_eq!(LabelKey::split(key).is_under(domain), expected, "{key} under {domain}");
        }
    }

    #[test]
    fn every_bad_label_is_named() {
        let labels = Labels::from([("/x".into(), "ok".into()), ("ok".into(), "-".into())]);
        assert_eq!(
            reported(|check| check_labels(check, &Path::ROOT.key("labels"), &labels)),
            "labels[\"/x\"]: the key has an invalid prefix: what stands before '/' must not be empty; \
             labels[\"ok\"]: the value must be empty, or of letters, digits, '-', '_' and '.', starting and \
             ending with a letter or digit"
        );
    }

    #[test]
    fn annotations_share_a_quarter_of_a_mebibyte() {
        for (bytes, expected) in [
            (262_144, ""),
            (262_145, "annotations: must be 262144 bytes or fewer in all, keys and values together"),
        ] {
            let annotations =
                Annotations::from([("a".into(), "x".repeat(1000)), ("b".into(), "x".repeat(bytes - 1002))]);
            let found =
                reported(|check| check_annotations(check, &Path::ROOT.key("annotations"), &annotations));
            assert_eq!(found, expected, "{bytes} bytes");
        }
    }
}

//! Names of records: validated once, when they are parsed.
//!
//! [`Name`] is the name of a node, pod or lease, [`Namespace`] groups records, [`Uid`] distinguishes records that had
//! the same name one after the other. All are cheap to clone and are ordered by their bytes, as the store's keys are.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use uuid::Uuid;

/// The longest [`Name`], in bytes.
pub const MAX_NAME: usize = 253;
/// The longest [`Namespace`], in bytes.
pub const MAX_NAMESPACE: usize = 63;

/// Why a text is not a name; the text continues after the name of the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("must not be empty")]
    Empty,
    #[error("must be {limit} bytes or fewer")]
    TooLong { limit: usize },
    #[error("may hold only lower-case letters, digits, '-' and '.', not {found:?}")]
    NotInName { found: char },
    #[error("may hold only lower-case letters, digits and '-', not {found:?}")]
    NotInLabel { found: char },
    #[error("must start and end with a lower-case letter or digit, and so must each part between dots")]
    Edge,
}

/// Checks a DNS-1123 subdomain: labels joined by dots, 253 bytes in all, no limit on the single label.
pub fn check_subdomain(text: &str) -> Result<(), NameError> {
    check_length(text, MAX_NAME)?;
    if let Some(found) = text.chars().find(|&c| !is_label_char(c) && c != '.') {
        return Err(NameError::NotInName { found });
    }
    text.split('.').try_for_each(check_edges)
}

/// Checks a DNS-1123 label: lower-case letters, digits and inner dashes, 63 bytes in all.
pub fn check_dns_label(text: &str) -> Result<(), NameError> {
    check_length(text, MAX_NAMESPACE)?;
    if let Some(found) = text.chars().find(|&c| !is_label_char(c)) {
        return Err(NameError::NotInLabel { found });
    }
    check_edges(text)
}

fn check_length(text: &str, limit: usize) -> Result<(), NameError> {
    match text.len() {
        0 => Err(NameError::Empty),
        len if len > limit => Err(NameError::TooLong { limit }),
        _ => Ok(()),
    }
}

fn is_label_char(c: char) -> bool {
    matches!(c, 'a'..='z' | '0'..='9' | '-')
}

fn check_edges(label: &str) -> Result<(), NameError> {
    if label.is_empty() || label.starts_with('-') || label.ends_with('-') {
        return Err(NameError::Edge);
    }
    Ok(())
}

/// Defines a validated text in an `Arc<str>`, with the traits of all such types.
macro_rules! checked_text {
    ($(#[$doc:meta])* $type:ident, $check:path) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Arc<str>);

        impl $type {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                $check(text)?;
                Ok(Self(text.into()))
            }
        }

        impl TryFrom<String> for $type {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(text: $type) -> String {
                text.as_str().to_owned()
            }
        }

        impl Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl PartialEq<str> for $type {
            fn eq(&self, other: &str) -> bool {
                self.as_str() == other
            }
        }

        impl PartialEq<&str> for $type {
            fn eq(&self, other: &&str) -> bool {
                self.as_str() == *other
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

checked_text! {
    /// The name of a node, pod or lease: a DNS-1123 subdomain, so `10.240.79.157` is valid, too.
    Name, check_subdomain
}

checked_text! {
    /// The name of a namespace: a DNS-1123 label.
    Namespace, check_dns_label
}

/// The identity of one record: a record that is created again under the same name gets another uid.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(Uuid);

/// The text is not a UUID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a UUID such as 8c2fd0a5-63b8-4a1f-9d0c-2f5e7f1b0a11")]
pub struct UidError;

impl Uid {
    pub const fn new(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// The UUID as a number.
    pub const fn as_u128(&self) -> u128 {
        self.0.as_u128()
    }
}

impl From<Uuid> for Uid {
    fn from(uuid: Uuid) -> Self {
        Self(uuid)
    }
}

impl FromStr for Uid {
    type Err = UidError;

    /// Also accepts upper case, braces and missing dashes; they give the same UUID.
    fn from_str(text: &str) -> Result<Self, UidError> {
        Uuid::try_parse(text).map(Self).map_err(|_| UidError)
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use NameError::*;

    #[test]
    fn a_name_is_a_dns_subdomain_of_253_bytes() {
        let longest = "a".repeat(253);
        let too_long = "a".repeat(254);
        for (text, expected) in [
            ("10.240.79.157", Ok(())),
            ("a.b-c.1", Ok(())),
            ("0", Ok(())),
            (&longest, Ok(())),
            (&too_long, Err(TooLong { limit: 253 })),
            ("", Err(Empty)),
            ("Node1", Err(NotInName { found: 'N' })),
            ("node_1", Err(NotInName { found: '_' })),
            ("nöde", Err(NotInName { found: 'ö' })),
            ("a b", Err(NotInName { found: ' ' })),
            ("-a", Err(Edge)),
            ("a-", Err(Edge)),
            ("a..b", Err(Edge)),
            (".a", Err(Edge)),
            ("a.", Err(Edge)),
            ("a.-b", Err(Edge)),
            ("a-.b", Err(Edge)),
        ] {
            assert_eq!(text.parse::<Name>().map(|name| assert_eq!(name, text)), expected, "{text:?}");
        }
    }

    #[test]
    fn a_namespace_is_one_dns_label_of_63_bytes() {
        let longest = "a".repeat(63);
        let too_long = "a".repeat(64);
        for (text, expected) in [
            ("kube-node-lease", Ok(())),
            ("1", Ok(())),
            (&longest, Ok(())),
            (&too_long, Err(TooLong { limit: 63 })),
            ("", Err(Empty)),
            ("a.b", Err(NotInLabel { found: '.' })),
            ("A", Err(NotInLabel { found: 'A' })),
            ("-a", Err(Edge)),
            ("a-", Err(Edge)),
        ] {
            assert_eq!(text.parse::<Namespace>().map(|_| ()), expected, "{text:?}");
        }
    }

    #[test]
    fn a_map_of_names_can_be_looked_up_by_text() {
        let map = std::collections::BTreeMap::from([("b".parse::<Name>().unwrap(), 2)]);
        assert_eq!(map.get("b"), Some(&2));
        assert_eq!(map.get("a"), None);
    }

    #[test]
    fn a_uid_has_one_spelling() {
        let canonical = "8c2fd0a5-63b8-4a1f-9d0c-2f5e7f1b0a11";
        for text in [
            canonical,
            "8C2FD0A5-63B8-4A1F-9D0C-2F5E7F1B0A11",
            "8c2fd0a563b84a1f9d0c2f5e7f1b0a11",
            "{8c2fd0a5-63b8-4a1f-9d0c-2f5e7f1b0a11}",
        ] {
            assert_eq!(text.parse::<Uid>().unwrap().to_string(), canonical, "{text:?}");
        }
        for text in ["", "n1", "8c2fd0a5-63b8-4a1f-9d0c"] {
            assert_eq!(text.parse::<Uid>(), Err(UidError), "{text:?}");
        }
    }
}

//! Revocations: certificates that are refused although they are not expired.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use uuid::Uuid;

use crate::meta::Metadata;
use crate::name::{MAX_NAME, Name};

/// Certificates that are refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Revocation {
    /// The name is [`revocation_name`]; a revocation that was not stored yet may have any.
    pub meta: Metadata,
    pub spec: RevocationSpec,
    pub status: RevocationStatus,
}

/// Which certificates, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct RevocationSpec {
    pub revoked: Revoked,
    pub reason: String,
    /// When the last of the certificates has expired; `None` before the store has set it.
    pub expire_time: Option<Timestamp>,
}

/// Which certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revoked {
    /// All of this node that were issued until the time of the revocation.
    Node(Name),
    Serial(Serial),
}

/// When it was revoked and who did it. Written by the store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RevocationStatus {
    pub revoked_by: String,
    pub revoke_time: Option<Timestamp>,
}

impl Revocation {
    /// Whether it covers a node's certificate that is valid from `not_before` on. Certificates have whole seconds, so
    /// one of the same second counts as issued before.
    pub fn covers_issue(&self, not_before: Timestamp) -> bool {
        self.status.revoke_time.is_none_or(|revoked| not_before.as_second() <= revoked.as_second())
    }
}

/// The serial number of a certificate. Tools write the same number in several ways; here it has lower-case hexadecimal
/// digits without colons and leading zeros.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serial(String);

/// The text is not a serial number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a serial number in hexadecimal, such as 3a:07:f1, of 20 bytes or fewer")]
pub struct SerialError;

impl Serial {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The serial number with these bytes.
    ///
    /// # Errors
    /// When it has more than 20 bytes, or none but zeros.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SerialError> {
        hex::encode(bytes).parse()
    }
}

impl FromStr for Serial {
    type Err = SerialError;

    fn from_str(text: &str) -> Result<Self, SerialError> {
        const MAX_DIGITS: usize = 40;
        let digits: String = text.chars().filter(|&letter| letter != ':').collect();
        let digits = digits.trim_start_matches('0').to_ascii_lowercase();
        let is_number =
            (1..=MAX_DIGITS).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_number { Ok(Self(digits)) } else { Err(SerialError) }
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The UUID namespace of names that were cut: an arbitrary value that must never change.
const NAMES: Uuid = Uuid::from_u128(0x6d75_7374_6572_5276_8e74_4e61_6d65_7331);

/// The name of the record that revokes these certificates. There is one for each node, and for each serial number.
pub fn revocation_name(revoked: &Revoked) -> Name {
    let name = match revoked {
        Revoked::Node(node) => format!("node-{node}"),
        Revoked::Serial(serial) => format!("serial-{serial}"),
    };
    let name = if name.len() <= MAX_NAME {
        name
    } else {
        let digest = Uuid::new_v5(&NAMES, name.as_bytes()).simple().to_string();
        let shown = name[..MAX_NAME - digest.len() - 1].trim_end_matches(['-', '.']);
        format!("{shown}.{digest}")
    };
    name.parse().expect("a name, perhaps cut, and hexadecimal digits make a name")
}

impl fmt::Display for Revoked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Revoked::Node(node) => write!(f, "node {node}"),
            Revoked::Serial(serial) => write!(f, "serial {serial}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_serial_number_is_the_same_however_tools_write_it() {
        for text in ["3a07f1", "3A:07:F1", "003a07f1", "00:3a:07:f1"] {
            assert_eq!(text.parse::<Serial>().unwrap().as_str(), "3a07f1", "{text}");
        }
        assert_eq!(Serial::from_bytes(&[0, 0x3a, 7, 0xf1]).unwrap().as_str(), "3a07f1");
        for text in ["", "0", "00:00", "3g", "0x3a", "-3", &"1".repeat(41)] {
            assert_eq!(text.parse::<Serial>(), Err(SerialError), "{text:?}");
        }
    }

    #[test]
    fn each_node_and_each_serial_number_has_one_name() {
        let node = |name: &str| revocation_name(&Revoked::Node(name.parse().unwrap()));
        assert_eq!(node("a"), "node-a");
        assert_eq!(revocation_name(&Revoked::Serial("0A".parse().unwrap())), "serial-a");
        let long = |end: &str| format!("{}{end}", "n".repeat(252));
        assert_eq!(node(&long("a")).as_str().len(), MAX_NAME);
        assert_ne!(node(&long("a")), node(&long("b")));
        assert_ne!(node("serial-a"), revocation_name(&Revoked::Serial("a".parse().unwrap())));
    }

    #[test]
    fn a_certificate_of_the_same_second_counts_as_issued_before() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let revocation = Revocation {
            meta: Metadata::new(None, "node-a".parse().unwrap()),
            spec: RevocationSpec {
                revoked: Revoked::Node("a".parse().unwrap()),
                reason: String::new(),
                expire_time: None,
            },
            status: RevocationStatus {
                revoke_time: Some(at("2026-01-01T00:00:10.7Z")),
                ..RevocationStatus::default()
            },
        };
        for (not_before, covered) in [
            ("2026-01-01T00:00:09Z", true),
            ("2026-01-01T00:00:10Z", true),
            ("2026-01-01T00:00:10.9Z", true),
            ("2026-01-01T00:00:11Z", false),
        ] {
            assert_eq!(revocation.covers_issue(at(not_before)), covered, "{not_before}");
        }
    }
}

//! Join tokens: with one, a machine without a certificate may join the fleet.
//!
//! The text of a token is `id.secret`. Its creator makes the secret; the store keeps a hash of it, under the id.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use uuid::Uuid;

use crate::digest::Sha256;
use crate::label::Labels;
use crate::meta::Metadata;
use crate::name::Name;

/// What the store keeps of a token.
#[derive(Clone, Debug, PartialEq)]
pub struct JoinToken {
    /// The name is the token's id.
    pub meta: Metadata,
    pub spec: JoinTokenSpec,
    pub status: JoinTokenStatus,
}

/// What a token permits.
#[derive(Clone, Debug, PartialEq)]
pub struct JoinTokenSpec {
    pub secret_sha256: Sha256,
    pub expire_time: Timestamp,
    /// More than 0.
    pub max_uses: i32,
    /// The only node that may join with it; `None` for any new node.
    pub node_name: Option<Name>,
    /// Labels that a joining node must register with.
    pub labels: Labels,
    /// Who created it. Written by the store.
    pub created_by: String,
}

/// The uses of a token. Written by the store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JoinTokenStatus {
    pub uses: i32,
    pub last_use_time: Option<Timestamp>,
}

/// Why a text is not a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be ID.SECRET, as `muster token create` prints it: {LEN_ID} and {LEN_SECRET} of 0-9 and a-z")]
pub struct SecretTokenError;

const LEN_ID: usize = 10;
const LEN_SECRET: usize = 32;

/// A token as its holder knows it. It is never logged: its debug text hides the secret, and there is no other.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretToken {
    id: Name,
    secret: String,
}

impl SecretToken {
    /// A new token from two random UUIDs. An id need not be hard to guess, and a secret has 122 random bits.
    pub fn new(id: Uuid, secret: Uuid) -> Self {
        let id = id.simple().to_string()[..LEN_ID].parse().expect("hexadecimal digits make a name");
        Self { id, secret: secret.simple().to_string() }
    }

    /// Whether a record of a token can have this name.
    pub fn is_id(text: &str) -> bool {
        is_part(text, LEN_ID)
    }

    /// The name of its record.
    pub fn id(&self) -> &Name {
        &self.id
    }

    /// What the store keeps of the secret.
    pub fn secret_sha256(&self) -> Sha256 {
        Sha256::of(self.secret.as_bytes())
    }

    /// The whole token, for its holder or for the call that spends it.
    pub fn reveal(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }
}

impl FromStr for SecretToken {
    type Err = SecretTokenError;

    /// The error does not repeat the text, which may be a secret with a typing error.
    fn from_str(text: &str) -> Result<Self, SecretTokenError> {
        let (id, secret) = text.split_once('.').ok_or(SecretTokenError)?;
        if !is_part(id, LEN_ID) || !is_part(secret, LEN_SECRET) {
            return Err(SecretTokenError);
        }
        Ok(Self { id: id.parse().map_err(|_| SecretTokenError)?, secret: secret.to_owned() })
    }
}

fn is_part(part: &str, len: usize) -> bool {
    part.len() == len && part.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase())
}

impl fmt::Debug for SecretToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.<secret>", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_is_revealed_and_never_shown() {
        let token = SecretToken::new(Uuid::from_u128(1 << 127), Uuid::from_u128(0xabc));
        let text = token.reveal();
        assert_eq!(text, format!("8000000000.{:032x}", 0xabc));
        assert_eq!(text.parse(), Ok(token.clone()));
        assert_eq!(format!("{token:?}"), "8000000000.<secret>");
        assert_eq!(token.secret_sha256(), Sha256::of(format!("{:032x}", 0xabc).as_bytes()));
    }

    #[test]
    fn what_is_no_token_is_refused_without_being_repeated() {
        let secret = "0".repeat(32);
        for text in ["", "a", ".", &secret, &format!("8000000000.{secret}0"), &format!("800000000.{secret}")]
        {
            let error = text.parse::<SecretToken>().unwrap_err().to_string();
            assert!(text.len() < 5 || !error.contains(text), "{error}");
        }
        assert!(format!("800000000A.{secret}").parse::<SecretToken>().is_err());
        assert!(format!("8000000000.{}", secret.replace('0', "-")).parse::<SecretToken>().is_err());
    }
}

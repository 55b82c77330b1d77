//! SHA-256 digests, by which keys and secrets are known without being stored.

use std::fmt;
use std::str::FromStr;

use subtle::ConstantTimeEq;

/// A SHA-256 digest; its text is 64 hexadecimal digits.
#[derive(Clone, Copy)]
pub struct Sha256([u8; 32]);

/// The text is not a digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a SHA-256 in 64 hexadecimal digits")]
pub struct Sha256Error;

impl Sha256 {
    pub fn of(bytes: &[u8]) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
        let mut own = [0; 32];
        own.copy_from_slice(digest.as_ref());
        Self(own)
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// In constant time: how long it takes does not tell where two digests differ.
impl PartialEq for Sha256 {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Sha256 {}

impl FromStr for Sha256 {
    type Err = Sha256Error;

    fn from_str(text: &str) -> Result<Self, Sha256Error> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| Sha256Error)?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&hex::encode(self.0))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_that_of_the_standard_and_read_as_it_is_written() {
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Sha256::of(b"abc").to_string(), text);
        assert_eq!(text.parse(), Ok(Sha256::of(b"abc")));
        assert_eq!(text.to_uppercase().parse(), Ok(Sha256::of(b"abc")));
        assert_ne!(Sha256::of(b"abc"), Sha256::of(b"abd"));
        for wrong in ["", "ba", &text[1..], &format!("{text}00"), &text.replace('b', "x")] {
            assert_eq!(wrong.parse::<Sha256>(), Err(Sha256Error), "{wrong:?}");
        }
    }
}

//! Fencing: a leader sends its claim on a lease with its writes, and the store refuses them once the lease has another
//! holder.
//!
//! Without a fence, a leader that was partitioned or paused could still write after another one had taken over. The
//! store compares the claim with the lease in the transaction of the write, so no change of the lease can come in
//! between.

use std::fmt;
use std::str::FromStr;

use crate::lease::Lease;
use crate::name::{Name, NameError, Namespace};

/// The gRPC metadata key of a write's fence.
pub const FENCE_KEY: &str = "muster-fence";

/// The longest holder, in bytes.
pub const MAX_HOLDER: usize = 253;

/// One term of one holder of a lease; written `namespace/name;transitions=N;holder=TEXT`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    namespace: Namespace,
    name: Name,
    holder: String,
    transitions: i32,
}

/// Why a fence is invalid; the text continues after the name of the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FenceError {
    #[error("must read namespace/name;transitions=N;holder=TEXT")]
    Form,
    #[error("names no lease: the namespace {0}")]
    Namespace(NameError),
    #[error("names no lease: the name {0}")]
    Name(NameError),
    #[error("counts no transitions: the number must be 0 or more")]
    Transitions,
    #[error("names no holder: that must be 1 to {MAX_HOLDER} visible ASCII characters")]
    Holder,
}

/// Checks that a holder can be part of a fence, which is sent in an HTTP header.
pub fn check_holder(holder: &str) -> Result<(), FenceError> {
    let fits = (1..=MAX_HOLDER).contains(&holder.len()) && holder.bytes().all(|byte| byte.is_ascii_graphic());
    if fits { Ok(()) } else { Err(FenceError::Holder) }
}

impl Fence {
    /// The claim of that holder, in the term with that number of lease transitions.
    ///
    /// # Errors
    /// When the holder or the number is not valid for a lease.
    pub fn new(
        namespace: Namespace,
        name: Name,
        holder: &str,
        transitions: i32,
    ) -> Result<Fence, FenceError> {
        check_holder(holder)?;
        if transitions < 0 {
            return Err(FenceError::Transitions);
        }
        Ok(Fence { namespace, name, holder: holder.to_owned(), transitions })
    }

    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    pub fn name(&self) -> &Name {
        &self.name
    }

    pub fn holder(&self) -> &str {
        &self.holder
    }

    pub fn transitions(&self) -> i32 {
        self.transitions
    }

    /// Whether the lease still has the claimed holder and transitions.
    pub fn holds(&self, lease: &Lease) -> bool {
        lease.spec.holder_identity == self.holder && lease.spec.lease_transitions == self.transitions
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fence { namespace, name, holder, transitions } = self;
        write!(f, "{namespace}/{name};transitions={transitions};holder={holder}")
    }
}

impl FromStr for Fence {
    type Err = FenceError;

    fn from_str(text: &str) -> Result<Fence, FenceError> {
        let parts = || {
            let (lease, rest) = text.split_once(";transitions=")?;
            let (transitions, holder) = rest.split_once(";holder=")?;
            let (namespace, name) = lease.split_once('/')?;
            Some((namespace, name, transitions, holder))
        };
        let (namespace, name, transitions, holder) = parts().ok_or(FenceError::Form)?;
        let namespace = namespace.parse().map_err(FenceError::Namespace)?;
        let name = name.parse().map_err(FenceError::Name)?;
        let transitions = transitions.parse().map_err(|_| FenceError::Transitions)?;
        Fence::new(namespace, name, holder, transitions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_parsed_as_it_is_written() {
        for holder in ["ctl-1_8c2fd0a5", "x", "a;holder=b", "a/b:c"] {
            let fence =
                Fence::new("kube-system".parse().unwrap(), "ctl".parse().unwrap(), holder, 7).unwrap();
            let text = fence.to_string();
            assert_eq!(text, format!("kube-system/ctl;transitions=7;holder={holder}"));
            assert_eq!(text.parse(), Ok(fence));
        }
    }

    #[test]
    fn an_invalid_fence_says_why() {
        use FenceError::*;
        for (text, expected) in [
            ("", Form),
            ("kube-system/ctl", Form),
            ("kube-system/ctl;holder=a;transitions=1", Form),
            ("ctl;transitions=1;holder=a", Form),
            ("/ctl;transitions=1;holder=a", Namespace(NameError::Empty)),
            ("x/C;transitions=1;holder=a", Name(NameError::NotInName { found: 'C' })),
            ("x/ctl;transitions=;holder=a", Transitions),
            ("x/ctl;transitions=-1;holder=a", Transitions),
            ("x/ctl;transitions=4294967296;holder=a", Transitions),
            ("x/ctl;transitions=1;holder=", Holder),
            ("x/ctl;transitions=1;holder=a b", Holder),
            ("x/ctl;transitions=1;holder=\u{e9}", Holder),
        ] {
            assert_eq!(text.parse::<Fence>(), Err(expected), "{text:?}");
        }
        assert_eq!(check_holder(&"a".repeat(MAX_HOLDER)), Ok(()));
        assert_eq!(check_holder(&"a".repeat(MAX_HOLDER + 1)), Err(Holder));
    }
}

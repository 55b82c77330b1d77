//! Whose keys these are: the format and the id of the store below a prefix.

use muster_etcd::requests::{get, modified_at, put, range, read};
use muster_etcd::{EtcdError, pb};
use prost::Message;
use uuid::Uuid;

use super::keys::{FormatError, Head, Keys, format_value, parse_format};
use super::kv::Kv;
use super::{DEADLINE, two};

/// The store below a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    pub store: Uuid,
    /// etcd's revision of the key `format`. Every write compares it: whoever changes the format ends older versions.
    pub format_revision: i64,
}

/// Why a prefix cannot be used. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("{0}")]
    Etcd(#[from] EtcdError),
    #[error("--etcd-prefix: {prefix} cannot be used: {reason}; nothing was written")]
    Format { prefix: String, reason: FormatError },
    #[error(
        "--etcd-prefix: there are keys below {prefix} that are not Muster's, such as {key}; give a prefix of its own; nothing was written"
    )]
    InUse { prefix: String, key: String },
}

impl IdentityError {
    /// Whether it may be otherwise later without anybody's help.
    pub fn is_passing(&self) -> bool {
        matches!(self, IdentityError::Etcd(error) if error.is_passing() || *error == EtcdError::NoSpace)
    }
}

/// Reads whose keys these are; an empty prefix gets a new store.
///
/// # Errors
/// When etcd does not answer, or the keys are somebody else's.
pub fn prepare(kv: &dyn Kv, keys: &Keys) -> Result<Identity, IdentityError> {
    loop {
        let (from, to) = keys.all();
        let any = pb::RangeRequest { keys_only: true, ..range(from, to, 1) };
        let reads = vec![read(get(keys.format())), read(any)];
        let answer = kv.txn(pb::TxnRequest { success: reads, ..Default::default() }, DEADLINE)?;
        let [format, any] = two(answer.into_reads());
        let prefix = || String::from_utf8_lossy(&keys.all().0).trim_end_matches('/').to_owned();
        if let Some(format) = format.first() {
            let store = parse_format(&format.value)
                .map_err(|reason| IdentityError::Format { prefix: prefix(), reason })?;
            return Ok(Identity { store, format_revision: format.mod_revision });
        }
        if let Some(other) = any.first() {
            let key = String::from_utf8_lossy(&other.key).into_owned();
            return Err(IdentityError::InUse { prefix: prefix(), key });
        }
        // Several stores may start at once on an empty etcd: one of them creates it, and all read it again.
        let create = pb::TxnRequest {
            compare: vec![modified_at(keys.format(), 0), modified_at(keys.head(), 0)],
            success: vec![
                put(keys.format(), format_value(Uuid::new_v4())),
                put(keys.head(), Head::empty().encode_to_vec()),
            ],
            ..Default::default()
        };
        kv.txn(create, DEADLINE)?;
    }
}

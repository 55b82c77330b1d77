//! Whose keys these are: the format and the id of the store below a prefix.

use muster_etcd::requests::{get, modified_at, put, range, read};
use muster_etcd::{EtcdError, pb};
use prost::Message;
use uuid::Uuid;

use super::DEADLINE;
use super::keys::{FormatError, Head, Keys, format_value, parse_format};
use super::kv::Kv;

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
    #[error(
        "--etcd-prefix: a store is being moved to {prefix}, or that was interrupted: run `muster-store migrate` again; nothing was written"
    )]
    Unfinished { prefix: String },
}

impl IdentityError {
    /// Whether it may be otherwise later without anybody's help.
    pub fn is_passing(&self) -> bool {
        matches!(self, IdentityError::Etcd(error) if error.is_passing() || *error == EtcdError::NoSpace)
    }
}

/// Reads whose keys these are; `None` if there are none.
///
/// # Errors
/// When etcd does not answer, or the keys are somebody else's.
pub fn find(kv: &dyn Kv, keys: &Keys) -> Result<Option<Identity>, IdentityError> {
    let (from, to) = keys.all();
    let any = pb::RangeRequest { keys_only: true, ..range(from, to, 1) };
    let reads = vec![read(get(keys.format())), read(any), read(get(keys.migration()))];
    let answer = kv.txn(pb::TxnRequest { success: reads, ..Default::default() }, DEADLINE)?;
    let mut reads = answer.into_reads().into_iter().map(|kvs| kvs.into_iter().next());
    let mut next = || reads.next().flatten();
    let (format, any, migration) = (next(), next(), next());
    let prefix = || String::from_utf8_lossy(&keys.all().0).trim_end_matches('/').to_owned();
    if let Some(format) = format {
        let store = parse_format(&format.value)
            .map_err(|reason| IdentityError::Format { prefix: prefix(), reason })?;
        return Ok(Some(Identity { store, format_revision: format.mod_revision }));
    }
    match (migration, any) {
        (Some(_), _) => Err(IdentityError::Unfinished { prefix: prefix() }),
        (None, Some(other)) => {
            let key = String::from_utf8_lossy(&other.key).into_owned();
            Err(IdentityError::InUse { prefix: prefix(), key })
        }
        (None, None) => Ok(None),
    }
}

/// Reads whose keys these are; an empty prefix gets a new store.
///
/// # Errors
/// When etcd does not answer, or the keys are somebody else's.
pub fn prepare(kv: &dyn Kv, keys: &Keys) -> Result<Identity, IdentityError> {
    loop {
        if let Some(found) = find(kv, keys)? {
            return Ok(found);
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

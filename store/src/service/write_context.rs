//! The caller of a write, its fence (the lease that the caller must still hold), and whether it is only to be checked.

use muster_proto::DRY_RUN_KEY;
use muster_proto::fence::{FENCE_KEY, Fence, FenceError};
use muster_proto::identity::Caller;
use muster_proto::invalid::Invalid;
use muster_proto::name::Namespace;
use muster_proto::record::{Kind, Record};
use tonic::Request;
use tonic::metadata::MetadataValue;

use muster_store_core::authz::{Call, Content, Verb, authorize};
use muster_store_core::draft::{Draft, Stored};
use muster_store_core::rules::{self, Outcome};

use super::{authz_result, caller};
use crate::error::StoreError;

/// The caller of a write and its fence, if the request has one.
pub(super) struct WriteContext {
    pub(super) caller: Caller,
    pub(super) fence: Option<Fence>,
    /// Everything is checked and nothing written.
    pub(super) dry_run: bool,
}

impl WriteContext {
    /// For calls that cannot be checked without doing them.
    pub(super) fn without_dry_run(self) -> Result<WriteContext, StoreError> {
        if self.dry_run {
            Err(Invalid::of(DRY_RUN_KEY, "cannot be given for this call").into())
        } else {
            Ok(self)
        }
    }

    /// Writes a new record, or only says what would be written.
    pub(super) fn put<R: Record>(
        dry_run: bool,
        draft: &mut Draft<'_>,
        record: R,
    ) -> Result<Stored, StoreError> {
        if dry_run { Ok(Stored::unwritten(record)) } else { Ok(draft.put(record)?) }
    }

    /// Writes an outcome, or only says what it would be.
    pub(super) fn apply<R: Record>(
        dry_run: bool,
        draft: &mut Draft<'_>,
        outcome: Outcome<R>,
    ) -> Result<Stored, StoreError> {
        if dry_run { Ok(Stored::unwritten(outcome.into_record())) } else { Ok(draft.apply(outcome)?) }
    }
}

/// Reads caller, fence and dry run from a request.
///
/// # Errors
/// When one of them is malformed, or names a lease that the caller may not read.
pub(super) fn write_context<T>(request: &Request<T>) -> Result<WriteContext, StoreError> {
    let caller = caller(request);
    let dry_run = match request.metadata().get(DRY_RUN_KEY).map(MetadataValue::as_bytes) {
        None => false,
        Some(b"true") => true,
        Some(_) => return Err(Invalid::of(DRY_RUN_KEY, "must be true, or absent").into()),
    };
    let mut values = request.metadata().get_all(FENCE_KEY).iter();
    let Some(fence) = values.next() else { return Ok(WriteContext { caller, fence: None, dry_run }) };
    let malformed = |reason: String| Invalid::of(FENCE_KEY, reason);
    if values.next().is_some() {
        return Err(malformed("must be given once".to_owned()).into());
    }
    let fence = fence.to_str().map_err(|_| FenceError::Form).and_then(str::parse::<Fence>);
    let fence = fence.map_err(|e| malformed(e.to_string()))?;
    // A refusal names the lease's holder, so the caller must be allowed to read the lease.
    let lease = rules::fenced_lease(&fence);
    let call = Call {
        verb: Verb::Get,
        kind: Kind::Lease,
        namespace: lease.namespace.as_ref().map(Namespace::as_str),
        name: Some(lease.name.as_str()),
        field_selector: None,
    };
    authz_result(authorize(&caller, &call, &Content::None))?;
    Ok(WriteContext { caller, fence: Some(fence), dry_run })
}

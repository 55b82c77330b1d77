//! The caller of a write, and its fence: the lease that the caller must still hold.

use muster_proto::fence::{FENCE_KEY, Fence, FenceError};
use muster_proto::identity::Caller;
use muster_proto::invalid::Invalid;
use muster_proto::name::Namespace;
use muster_proto::record::Kind;
use tonic::Request;

use muster_store_core::authz::{Call, Content, Verb, authorize};
use muster_store_core::rules;

use super::{authz_result, caller};
use crate::error::StoreError;

/// The caller of a write and its fence, if the request has one.
pub(super) struct WriteContext {
    pub(super) caller: Caller,
    pub(super) fence: Option<Fence>,
}

/// Reads caller and fence from a request.
///
/// # Errors
/// When the fence is malformed, or names a lease that the caller may not read.
pub(super) fn write_context<T>(request: &Request<T>) -> Result<WriteContext, StoreError> {
    let caller = caller(request);
    let mut values = request.metadata().get_all(FENCE_KEY).iter();
    let Some(fence) = values.next() else { return Ok(WriteContext { caller, fence: None }) };
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
    Ok(WriteContext { caller, fence: Some(fence) })
}

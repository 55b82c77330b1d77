//! Who writes: the caller, and the lease by which they claim to.

use muster_proto::fence::{FENCE_KEY, Fence, FenceError};
use muster_proto::identity::Caller;
use muster_proto::invalid::Invalid;
use muster_proto::name::Namespace;
use muster_proto::record::Kind;
use tonic::Request;

use super::{authz_result, caller};
use crate::error::StoreError;
use muster_store_core::authz::{Call, Content, Verb, authorize};
use muster_store_core::rules;

/// Who writes, and by which lease they do so, if they say.
pub(super) struct WriteContext {
    pub(super) caller: Caller,
    pub(super) fence: Option<Fence>,
}

/// Who writes, from a request.
///
/// # Errors
/// When the fence is none, or is about a lease that the caller may not read.
pub(super) fn write_context<T>(request: &Request<T>) -> Result<WriteContext, StoreError> {
    let caller = caller(request);
    let mut said = request.metadata().get_all(FENCE_KEY).iter();
    let Some(fence) = said.next() else { return Ok(WriteContext { caller, fence: None }) };
    let malformed = |reason: String| Invalid::of(FENCE_KEY, reason);
    if said.next().is_some() {
        return Err(malformed("must be given once".to_owned()).into());
    }
    let fence = fence.to_str().map_err(|_| FenceError::Form).and_then(str::parse::<Fence>);
    let fence = fence.map_err(|e| malformed(e.to_string()))?;
    // A refusal says who holds the lease, so only those may name one who may read it.
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

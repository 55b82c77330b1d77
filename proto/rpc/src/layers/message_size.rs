//! Messages that are too large are refused with INVALID_ARGUMENT and a reason.
//!
//! tonic answers OUT_OF_RANGE without a reason. To our clients that code means that the requested history is gone and
//! that they must list again, which would not help here.

use std::collections::HashMap;

use http::Response;
use tonic::body::Body;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use muster_proto::ERROR_DOMAIN;

/// The reason in the `ErrorInfo` of a message that is too large.
pub const TOO_LARGE: &str = "TOO_LARGE";

/// The beginning of tonic's error message; the sizes follow.
const TONICS_WORDS: &str = "Error, decoded message length too large: ";

/// Our status for a message that is too large, if tonic's status is about that.
pub fn too_large(status: &Status) -> Option<Status> {
    let figures =
        status.message().strip_prefix(TONICS_WORDS).filter(|_| status.code() == Code::OutOfRange)?;
    let details = ErrorDetails::with_error_info(TOO_LARGE, ERROR_DOMAIN, HashMap::new());
    Some(Status::with_error_details(
        Code::InvalidArgument,
        format!("the message is too large: {figures}"),
        details,
    ))
}

/// Replaces tonic's response for a message that is too large.
pub(crate) fn answer_too_large(response: Response<Body>) -> Response<Body> {
    // Most responses have no status in the head and pass unchanged.
    let status =
        response.headers().get("grpc-status").and_then(|_| Status::from_header_map(response.headers()));
    status.as_ref().and_then(too_large).map_or(response, Status::into_http)
}

//! Messages that are too large are refused in our own words.
//!
//! tonic answers them OUT_OF_RANGE, without a reason for programs. To our callers that code says that history has moved
//! on and a list will help, which is not so here.

use std::collections::HashMap;

use http::Response;
use tonic::body::Body;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use muster_proto::ERROR_DOMAIN;

/// The reason in the `ErrorInfo` of a message that was not read.
pub const TOO_LARGE: &str = "TOO_LARGE";

/// How tonic begins to say it, before the figures.
const TONICS_WORDS: &str = "Error, decoded message length too large: ";

/// The refusal of a message that was too large to be read, if that is what tonic's status is about.
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

/// The answer of a call, with the refusal above in the place of tonic's.
pub(crate) fn answer_too_large(response: Response<Body>) -> Response<Body> {
    // Most answers have no status yet, and are passed on after one look.
    let status =
        response.headers().get("grpc-status").and_then(|_| Status::from_header_map(response.headers()));
    status.as_ref().and_then(too_large).map_or(response, Status::into_http)
}

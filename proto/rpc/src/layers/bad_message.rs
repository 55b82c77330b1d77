//! Messages that are too large or cannot be decoded are refused with INVALID_ARGUMENT and a reason.
//!
//! tonic answers OUT_OF_RANGE to a message that is too large. To our clients that code means that the requested history
//! is gone and that they must list again, which would not help here. To bytes that are no protobuf message it answers
//! INTERNAL, which would blame the server for the caller's mistake.

use std::collections::HashMap;

use http::Response;
use tonic::body::Body;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use muster_proto::ERROR_DOMAIN;

/// The reason in the `ErrorInfo` of a message that is too large.
pub const TOO_LARGE: &str = "TOO_LARGE";
/// The reason in the `ErrorInfo` of a message that cannot be decoded.
pub const UNDECODABLE: &str = "UNDECODABLE";

/// The beginning of tonic's error message; the sizes follow.
const TONICS_WORDS: &str = "Error, decoded message length too large: ";
/// The beginning of prost's error message; the field and what is wrong with it follow.
const PROSTS_WORDS: &str = "failed to decode Protobuf message: ";

/// Our status for a message that is too large or cannot be decoded, if the decoder's status is about that.
pub fn bad_message(status: &Status) -> Option<Status> {
    let (reason, message) = match status.code() {
        Code::OutOfRange => {
            let figures = status.message().strip_prefix(TONICS_WORDS)?;
            (TOO_LARGE, format!("the message is too large: {figures}"))
        }
        Code::Internal => {
            let problem = status.message().strip_prefix(PROSTS_WORDS)?;
            (
                UNDECODABLE,
                format!("the message is not the protobuf message that this method takes: {problem}"),
            )
        }
        _ => return None,
    };
    let details = ErrorDetails::with_error_info(reason, ERROR_DOMAIN, HashMap::new());
    Some(Status::with_error_details(Code::InvalidArgument, message, details))
}

/// Replaces the decoder's response to a message that is too large or cannot be decoded.
pub(crate) fn answer_bad_message(response: Response<Body>) -> Response<Body> {
    // Most responses have no status in the head and pass unchanged.
    let status =
        response.headers().get("grpc-status").and_then(|_| Status::from_header_map(response.headers()));
    status.as_ref().and_then(bad_message).map_or(response, Status::into_http)
}

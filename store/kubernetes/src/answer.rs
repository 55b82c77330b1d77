//! Answers of HTTP.

use std::io::Write;

use axum::body::Body;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, VARY, WARNING};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use muster_rpc::server::Answer;
use serde_json::Value;

use crate::media::JSON;
use crate::status::Failure;

/// Smaller answers are not compressed, as in Kubernetes.
pub(crate) const COMPRESS_FROM: usize = 128 * 1024;
/// The most warnings of an answer, and the longest one: they are headers.
const MAX_WARNINGS: usize = 20;
const MAX_WARNING: usize = 200;

/// A document.
pub(crate) fn json(code: u16, document: &Value) -> Answer {
    let mut text = document.to_string();
    text.push('\n');
    with_type(code, JSON, text.into())
}

/// A document, compressed if it is large and the client takes that.
pub(crate) fn large_json(document: &Value, headers: &HeaderMap) -> Answer {
    let mut text = document.to_string();
    text.push('\n');
    if text.len() < COMPRESS_FROM || !takes_gzip(headers) {
        return with_type(200, JSON, text.into());
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    match encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish()) {
        Ok(compressed) => {
            let mut answer = with_type(200, JSON, compressed.into());
            answer.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            answer.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
            answer
        }
        Err(_) => with_type(200, JSON, text.into()),
    }
}

/// Whether the client takes compressed answers.
pub(crate) fn takes_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get(http::header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    accepted.is_some_and(|accepted| {
        accepted.split(',').any(|coding| {
            let (name, quality) = coding.split_once(';').unwrap_or((coding, ""));
            name.trim() == "gzip" && quality.trim() != "q=0"
        })
    })
}

/// A text.
pub(crate) fn text(code: u16, text: &'static str) -> Answer {
    with_type(code, "text/plain; charset=utf-8", text.into())
}

/// A failure as its `Status`.
pub(crate) fn failure(failure: &Failure) -> Answer {
    let mut answer = json(failure.code, &failure.to_json());
    if let Some(seconds) = failure.retry_after {
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}

/// A body of this type.
pub(crate) fn with_type(code: u16, content_type: &'static str, body: Bytes) -> Answer {
    streamed(code, content_type, Body::from(body))
}

/// A body that is still being made.
pub(crate) fn streamed(code: u16, content_type: &'static str, body: Body) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    answer
}

/// Adds warnings, which kubectl prints.
pub(crate) fn warn(mut answer: Answer, warnings: &[String]) -> Answer {
    for warning in warnings.iter().take(MAX_WARNINGS) {
        if let Ok(value) = HeaderValue::try_from(warning_header(warning)) {
            answer.headers_mut().append(WARNING, value);
        }
    }
    answer
}

/// A warning as a header: quoted, and without what cannot be in one.
fn warning_header(warning: &str) -> String {
    let shown = &warning[..warning.floor_char_boundary(MAX_WARNING)];
    let shown: String = shown
        .chars()
        .map(|letter| if letter.is_ascii_graphic() || letter == ' ' { letter } else { '?' })
        .collect();
    format!("299 - \"{}\"", shown.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_a_quoted_header() {
        assert_eq!(warning_header("unknown field \"a\""), "299 - \"unknown field \\\"a\\\"\"");
        assert_eq!(warning_header("a\r\nb é"), "299 - \"a??b ?\"");
    }

    #[test]
    fn only_large_answers_are_compressed_and_only_for_those_who_take_it() {
        let large = Value::String("x".repeat(COMPRESS_FROM));
        let mut headers = HeaderMap::new();
        let is_compressed = |document: &Value, headers: &HeaderMap| {
            large_json(document, headers).headers().contains_key(CONTENT_ENCODING)
        };
        assert!(!is_compressed(&large, &headers));
        headers.insert(http::header::ACCEPT_ENCODING, HeaderValue::from_static("identity, gzip;q=0"));
        assert!(!is_compressed(&large, &headers));
        headers.insert(http::header::ACCEPT_ENCODING, HeaderValue::from_static("deflate, gzip"));
        assert!(is_compressed(&large, &headers));
        assert!(!is_compressed(&Value::Null, &headers));
    }
}

//! What a server tells about itself in the answer to a health check: its version and its time.

use std::time::Duration;

use jiff::Timestamp;
use muster_rpc::server::VERSION_KEY;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// A server's own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerAnswer {
    /// `None` for a release that does not tell.
    pub(crate) version: Option<String>,
    /// The server's clock, in whole seconds.
    pub(crate) date: Option<Timestamp>,
}

/// Asks a server. Health checks need no rights.
pub(crate) async fn ask(channel: Channel, timeout: Duration) -> Result<ServerAnswer, Status> {
    let mut request = Request::new(HealthCheckRequest { service: String::new() });
    request.set_timeout(timeout);
    let answer = HealthClient::new(channel).check(request).await?;
    Ok(read(answer.metadata()))
}

fn read(headers: &MetadataMap) -> ServerAnswer {
    let text = |key: &str| headers.get(key).and_then(|value| value.to_str().ok());
    let date = text("date").and_then(|date| jiff::fmt::rfc2822::parse(date).ok());
    ServerAnswer { version: text(VERSION_KEY).map(str::to_owned), date: date.map(|date| date.timestamp()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headers_have_version_and_time() {
        let mut headers = MetadataMap::new();
        assert_eq!(read(&headers), ServerAnswer { version: None, date: None });
        headers.insert(VERSION_KEY, "0.1.0".parse().unwrap());
        headers.insert("date", "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap());
        let date = "1994-11-06T08:49:37Z".parse().unwrap();
        assert_eq!(read(&headers), ServerAnswer { version: Some("0.1.0".to_owned()), date: Some(date) });
    }
}

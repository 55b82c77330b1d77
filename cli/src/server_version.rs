//! What a server says about itself in the answer to a health check: its version, its time and its store's id.

use std::time::Duration;

use jiff::Timestamp;
use muster_rpc::layers::store_id::STORE_ID_KEY;
use muster_rpc::server::VERSION_KEY;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// A server's own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerAnswer {
    /// `None` for a release that does not say.
    pub(crate) version: Option<String>,
    /// The server's clock, in whole seconds.
    pub(crate) date: Option<Timestamp>,
    /// The identity of a store; `None` for other servers.
    pub(crate) store_id: Option<String>,
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
    ServerAnswer {
        version: text(VERSION_KEY).map(str::to_owned),
        date: date.map(|date| date.timestamp()),
        store_id: text(STORE_ID_KEY).map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headers_have_version_time_and_store() {
        let mut headers = MetadataMap::new();
        assert_eq!(read(&headers), ServerAnswer { version: None, date: None, store_id: None });
        headers.insert(VERSION_KEY, "0.1.0".parse().unwrap());
        headers.insert("date", "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap());
        let date = "1994-11-06T08:49:37Z".parse().unwrap();
        headers.insert(STORE_ID_KEY, "s1".parse().unwrap());
        let (version, store_id) = (Some("0.1.0".to_owned()), Some("s1".to_owned()));
        assert_eq!(read(&headers), ServerAnswer { version, date: Some(date), store_id });
    }
}

//! A client of the simulation's HTTP API, which kills and revives simulated nodes of a running `muster up`.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::failure::{Exit, Failure};

/// The API is on this machine, so an answer that takes longer will not come.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The client.
#[derive(Clone, Debug)]
pub(super) struct SimulationClient {
    /// Host and port.
    address: String,
}

impl SimulationClient {
    /// Takes the address in the form that `muster up` prints.
    pub(super) fn new(url: &str) -> SimulationClient {
        let address = url.strip_prefix("http://").unwrap_or(url);
        SimulationClient { address: address.trim_end_matches('/').trim_end_matches("/simulation").to_owned() }
    }

    /// Kills the nodes of a selection such as `node=sim-1`, `zone=zone-1` or `all`; returns the names of the nodes that
    /// were on.
    pub(super) async fn kill(&self, selection: &str) -> Result<Vec<String>, Failure> {
        self.call("POST", &format!("/kill?{selection}")).await
    }

    pub(super) async fn revive(&self, selection: &str) -> Result<Vec<String>, Failure> {
        self.call("POST", &format!("/revive?{selection}")).await
    }

    /// The lines of the status page; an error if the API cannot be reached.
    pub(super) async fn status(&self) -> Result<Vec<String>, Failure> {
        self.call("GET", "").await
    }

    async fn call(&self, method: &str, path: &str) -> Result<Vec<String>, Failure> {
        let address = &self.address;
        let unreachable = |reason: String| {
            Failure::new(Exit::Unreachable, format!("the simulation at {address} cannot be reached: {reason}"))
                .hint("--simulation takes the address that `muster up` prints; without it the demo starts its own fleet")
        };
        let calling = async {
            let mut stream = TcpStream::connect(address.as_str()).await?;
            let request = format!(
                "{method} /simulation{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
            );
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            Ok::<_, std::io::Error>(answer)
        };
        let answer = tokio::time::timeout(TIMEOUT, calling).await;
        let answer = answer.map_err(|_| unreachable("no answer in time".to_owned()))?;
        let answer = answer.map_err(|error| unreachable(error.to_string()))?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        if !head.starts_with("HTTP/1.1 200") {
            return Err(unreachable(format!("{} {}", head.lines().next().unwrap_or_default(), body.trim())));
        }
        Ok(body.lines().map(str::to_owned).collect())
    }
}

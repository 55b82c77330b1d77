//! Killing and reviving simulated nodes of a running `muster up`.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::failure::{Exit, Failure};

/// It is on this machine: whoever has not answered by then will not.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where machines are switched.
#[derive(Clone, Debug)]
pub(super) struct Switch {
    /// Host and port.
    address: String,
}

impl Switch {
    /// From an address as `muster up` prints it.
    pub(super) fn at(url: &str) -> Switch {
        let address = url.strip_prefix("http://").unwrap_or(url);
        Switch { address: address.trim_end_matches('/').trim_end_matches("/simulation").to_owned() }
    }

    /// Kills nodes, such as `node=sim-1`, `zone=zone-1` or `all`; says which.
    pub(super) async fn kill(&self, who: &str) -> Result<Vec<String>, Failure> {
        self.call("POST", &format!("/kill?{who}")).await
    }

    pub(super) async fn revive(&self, who: &str) -> Result<Vec<String>, Failure> {
        self.call("POST", &format!("/revive?{who}")).await
    }

    /// Whether anybody answers there.
    pub(super) async fn look(&self) -> Result<Vec<String>, Failure> {
        self.call("GET", "").await
    }

    async fn call(&self, method: &str, path: &str) -> Result<Vec<String>, Failure> {
        let address = &self.address;
        let unreachable = |reason: String| {
            Failure::new(Exit::Unreachable, format!("the simulation at {address} cannot be asked: {reason}"))
                .hint("--simulation is the address that `muster up` prints; without it the demonstration runs its own")
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
        let answer = tokio::time::timeout(PATIENCE, calling).await;
        let answer = answer.map_err(|_| unreachable("no answer in time".to_owned()))?;
        let answer = answer.map_err(|error| unreachable(error.to_string()))?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        if !head.starts_with("HTTP/1.1 200") {
            return Err(unreachable(format!("{} {}", head.lines().next().unwrap_or_default(), body.trim())));
        }
        Ok(body.lines().map(str::to_owned).collect())
    }
}

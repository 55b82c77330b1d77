//! Finds out whether a server speaks TLS, to explain a connection that failed.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// What a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Tls,
    /// HTTP/2 without TLS.
    Plaintext,
}

/// How long the server may take. The command has failed already, so this is short.
const TIMEOUT: Duration = Duration::from_millis(500);

/// What a client of HTTP/2 sends first, and an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The protocol of the server at a URL; `None` if that is unknown.
pub(super) fn probe(url: &str) -> Option<Protocol> {
    let authority = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = authority.split('/').next()?;
    let address = authority.to_socket_addrs().ok()?.next()?;
    let mut connection = TcpStream::connect_timeout(&address, TIMEOUT).ok()?;
    connection.set_read_timeout(Some(TIMEOUT)).ok()?;
    connection.write_all(PREFACE).ok()?;
    let mut answer = [0; 4];
    connection.read_exact(&mut answer).ok()?;
    classify(answer)
}

/// A server with TLS answers the preface with an alert; one without answers with its own settings.
fn classify(answer: [u8; 4]) -> Option<Protocol> {
    const ALERT: u8 = 0x15;
    const TLS_MAJOR_VERSION: u8 = 3;
    const SETTINGS: u8 = 4;
    match answer {
        [ALERT, TLS_MAJOR_VERSION, _, _] => Some(Protocol::Tls),
        // A frame starts with its length, three bytes, and its type.
        [_, _, _, SETTINGS] => Some(Protocol::Plaintext),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_of_the_answer_tell_the_protocol() {
        assert_eq!(classify([0x15, 3, 3, 0]), Some(Protocol::Tls));
        assert_eq!(classify([0, 0, 0x1e, 4]), Some(Protocol::Plaintext));
        assert_eq!(classify(*b"HTTP"), None);
    }
}

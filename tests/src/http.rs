//! A minimal HTTP client for servers on this machine.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::store_process::TIMEOUT;

/// The body of a response, if the server answers.
pub fn get(address: SocketAddr, path: &str) -> Option<String> {
    get_as(address, path, "*/*")
}

/// The body of a response in that format, if the server answers.
pub fn get_as(address: SocketAddr, path: &str, accept: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    // HTTP/1.0: the answer comes in one piece and ends with the connection.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: muster\r\nAccept: {accept}\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer.split_once("\r\n\r\n")?.1.to_owned())
}

/// A text in the encoding of a URL's query.
pub fn percent_encoded(text: &str) -> String {
    let encoded = text.bytes().map(|byte| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    });
    encoded.collect()
}

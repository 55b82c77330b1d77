//! The real `muster` as a child process that serves: `muster up` and `muster ui`. It is killed when it is dropped.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};

use tempfile::TempDir;

use crate::child_process::without_settings;
use crate::store_process::{TIMEOUT, build};

/// The operator's command, built from the current sources.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| build("muster"))
}

/// A running `muster`, and what it has printed.
#[derive(Debug)]
pub struct MusterProcess {
    child: Child,
    lines: Receiver<String>,
    printed: Vec<String>,
    /// Its home and its temporary files.
    _directory: TempDir,
}

impl MusterProcess {
    /// Starts `muster up` with simulated nodes on free ports, and waits until the fleet is ready.
    pub fn up(flags: &[&str]) -> MusterProcess {
        let mut arguments = vec!["up", "--ephemeral", "--no-agent"];
        for flag in [
            "--listen",
            "--http-listen",
            "--kubernetes-listen",
            "--controller-listen",
            "--controller-http-listen",
            "--simulation-listen",
            "--ui-listen",
        ] {
            arguments.extend([flag, "127.0.0.1:0"]);
        }
        arguments.extend(flags);
        let mut up = MusterProcess::start(&arguments);
        up.wait_for("ready");
        up
    }

    /// Starts `muster ui` and waits until it has printed its address.
    pub fn ui(flags: &[&str]) -> MusterProcess {
        let mut ui = MusterProcess::start(&[&["ui"], flags].concat());
        ui.wait_for("The page ");
        ui
    }

    fn start(arguments: &[&str]) -> MusterProcess {
        let directory = tempfile::tempdir().expect("a directory");
        let mut command = Command::new(binary());
        without_settings(&mut command);
        command.args(arguments).env("HOME", directory.path()).env("TMPDIR", directory.path());
        command.env_remove("XDG_CONFIG_HOME").env_remove("XDG_STATE_HOME");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().expect("muster can be run");
        let out = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok());
        });
        MusterProcess { child, lines, printed: Vec::new(), _directory: directory }
    }

    /// Reads until a line starts with this text.
    fn wait_for(&mut self, start: &str) {
        while self.printed.last().is_none_or(|line| !line.starts_with(start)) {
            let line = self.lines.recv_timeout(TIMEOUT);
            let line =
                line.unwrap_or_else(|error| panic!("no {start:?}: {error}; it printed {:?}", self.printed));
            self.printed.push(line);
        }
    }

    /// The word behind a word at the start of a line of `muster up`.
    fn after(&self, word: &str) -> &str {
        let found = self.printed.iter().find_map(|line| line.trim_start().strip_prefix(word));
        let found = found.unwrap_or_else(|| panic!("no line starts with {word:?} in {:?}", self.printed));
        found.split_whitespace().next().unwrap_or_default()
    }

    /// The address of the page of `muster up`.
    pub fn page(&self) -> String {
        self.after("page ").to_owned()
    }

    /// The address that `muster ui` has printed.
    pub fn address(&self) -> String {
        self.printed.first().cloned().unwrap_or_default()
    }

    /// The address of the store of `muster up`.
    pub fn store(&self) -> String {
        format!("http://{}", self.after("store "))
    }

    /// The address of the controller of `muster up`.
    pub fn controller(&self) -> String {
        format!("http://{}", self.after("controller "))
    }

    /// Switches simulated machines off or on: `kill?node=sim-1`, `revive?all`.
    pub fn simulate(&self, what: &str) {
        let address = self.after("simulation ").trim_start_matches("http://");
        let (address, path) = address.split_once('/').expect("it has a path");
        let address: SocketAddr = address.parse().expect("an address");
        let answer = http(address, &format!("POST /{path}/{what} HTTP/1.1\r\nHost: {address}\r\n"), "");
        assert!(answer.starts_with("HTTP/1.1 200"), "{what}: {answer}");
    }
}

impl Drop for MusterProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a request line with headers, and returns the whole answer.
///
/// # Panics
/// When there is no answer.
pub fn http(address: SocketAddr, head: &str, content: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout can be set");
    let length = content.len();
    write!(stream, "{head}Content-Length: {length}\r\nConnection: close\r\n\r\n{content}").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

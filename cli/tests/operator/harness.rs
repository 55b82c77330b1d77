//! Where it plays: a store on a real socket in this process, and `muster` as a child.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use muster_rpc::config::parse_with_config;
use muster_rpc::shutdown::Shutdown;
use muster_store::config::Flags;
use muster_store::run::{Running, start};
use muster_store_client::{StoreClient, StoreEndpoints};
use tempfile::TempDir;

/// Whatever takes longer than this has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A store, and the home of whoever calls `muster`.
pub(crate) struct Stage {
    home: TempDir,
    store: Option<Running>,
    shutdown: Shutdown,
    /// What is said to `muster` in variables.
    variables: Vec<(String, OsString)>,
}

/// What a command said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    /// The answer of a command that did what it was asked.
    pub(crate) fn ok(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{}", self.out);
        self.out
    }

    /// The complaint of a command that failed with that code, saying what to do next.
    pub(crate) fn refused(self, code: i32) -> String {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        assert!(self.err.contains("\nhint: "), "{}", self.err);
        self.err
    }
}

impl Said {
    /// The complaint of a command whose arguments do not go together.
    pub(crate) fn refused_by_arguments(self) -> String {
        assert_eq!(self.code, 2, "{}{}", self.out, self.err);
        assert!(self.err.contains("cannot be used with"), "{}", self.err);
        self.err
    }
}

impl Stage {
    /// Nothing runs.
    pub(crate) fn empty() -> Stage {
        let home = tempfile::tempdir().unwrap();
        Stage { home, store: None, shutdown: Shutdown::new(), variables: Vec::new() }
    }

    /// A store without TLS, which `muster` is told of by its variable.
    pub(crate) async fn with_store() -> Stage {
        let mut stage = Stage::empty();
        let url = stage.start_store(&[]).await;
        stage.say("MUSTER_STORE", url);
        stage
    }

    /// Starts the store; returns where it is.
    pub(crate) async fn start_store(&mut self, flags: &[String]) -> String {
        let data = format!("--data-dir={}", self.path("store").display());
        let fixed = ["muster-store", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", &data];
        let arguments = fixed.into_iter().chain(flags.iter().map(String::as_str)).map(OsString::from);
        let flags: Flags = parse_with_config(arguments).unwrap();
        let running = start((&flags).try_into().unwrap(), self.shutdown.clone()).await.unwrap();
        let address = running.address;
        self.store = Some(running);
        format!("http://{address}")
    }

    /// Sets a variable for every command to come.
    pub(crate) fn say(&mut self, variable: &str, value: impl Into<OsString>) {
        self.variables.push((variable.to_owned(), value.into()));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Writes a file; returns its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// The store as a program sees it.
    pub(crate) fn client(&self) -> StoreClient {
        let address = self.store.as_ref().unwrap().address;
        StoreClient::connect(StoreEndpoints::new([format!("http://{address}")])).unwrap()
    }

    pub(crate) fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
        // The tester's own settings are not the test's.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("MUSTER_") {
                command.env_remove(name);
            }
        }
        command.env_remove("XDG_CONFIG_HOME").env("HOME", self.home.path()).env("USER", "eva");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.args(arguments.split_whitespace()).current_dir(self.home.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs `muster` with these words.
    pub(crate) async fn muster(&self, arguments: &str) -> Said {
        self.piped(arguments, "").await
    }

    /// Runs `muster` with these words, and text on its standard input.
    pub(crate) async fn piped(&self, arguments: &str, input: &str) -> Said {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped());
        let input = input.to_owned();
        // The store lives in this process: its threads must not be held up.
        let output = tokio::task::spawn_blocking(move || {
            let mut child = command.spawn().unwrap();
            // A command that does not read its input closes it; that is not our failure.
            let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
            child.wait_with_output().unwrap()
        });
        let output = tokio::time::timeout(PATIENCE, output).await.expect("muster ends").unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Said { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Starts a `muster` that goes on by itself.
    pub(crate) fn start(&self, arguments: &str) -> Going {
        let mut child = self.command(arguments).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok());
        });
        Going { child, lines, said: Vec::new() }
    }

    /// Stops the store in order.
    pub(crate) async fn stop_store(&mut self) {
        self.shutdown.trigger();
        if let Some(running) = self.store.take() {
            running.stopped().await.unwrap();
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.shutdown.trigger();
    }
}

/// A `muster` that goes on; it does not outlive the test.
pub(crate) struct Going {
    child: Child,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Going {
    /// Reads until a line has these words in this order; returns it.
    pub(crate) async fn until(&mut self, words: &[&str]) -> String {
        loop {
            let line = tokio::task::block_in_place(|| self.lines.recv_timeout(PATIENCE));
            let line = line.unwrap_or_else(|error| {
                let complaints = self.complaints();
                panic!("no {words:?}: {error}; said {:#?}; {complaints}", self.said)
            });
            self.said.push(line.clone());
            let mut rest = line.as_str();
            let found = words.iter().all(|word| match rest.split_once(word) {
                Some((_, after)) => {
                    rest = after;
                    true
                }
                None => false,
            });
            if found {
                return line;
            }
        }
    }

    fn complaints(&mut self) -> String {
        let _ = self.child.kill();
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A manifest that the tests of how things look use too. The lease comes without its owner: a store removes
/// what belongs to a node that is none of its own.
pub(crate) fn sample(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/samples").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    let owner = text.find("  ownerReferences:\n  - {apiVersion: v1, kind: Node").zip(text.find("spec:\n"));
    match owner {
        Some((start, end)) => format!("{}{}", &text[..start], &text[end..]),
        None => text,
    }
}

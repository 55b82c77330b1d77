//! The test harness: a store on a real socket in this process, and `muster` as a child process.

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

/// A command that takes longer than this has failed.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A store, and the home directory and environment of `muster`.
pub(crate) struct Harness {
    home: TempDir,
    store: Option<Running>,
    shutdown: Shutdown,
    /// Environment variables for `muster`.
    variables: Vec<(String, OsString)>,
}

/// The output and exit code of a command.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Output {
    /// The standard output of a command that succeeded without errors or warnings.
    pub(crate) fn ok(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{}", self.out);
        self.out
    }

    /// The standard error of a command that failed with that exit code. It must have a hint.
    pub(crate) fn failed(self, code: i32) -> String {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        assert!(self.err.contains("\nhint: "), "{}", self.err);
        self.err
    }

    /// The standard error of a command whose arguments conflict.
    pub(crate) fn conflicting_arguments(self) -> String {
        assert_eq!(self.code, 2, "{}{}", self.out, self.err);
        assert!(self.err.contains("cannot be used with"), "{}", self.err);
        self.err
    }
}

impl Harness {
    /// No store runs.
    pub(crate) fn empty() -> Harness {
        let home = tempfile::tempdir().unwrap();
        Harness { home, store: None, shutdown: Shutdown::new(), variables: Vec::new() }
    }

    /// A store without TLS; MUSTER_STORE has its address.
    pub(crate) async fn with_store() -> Harness {
        let mut harness = Harness::empty();
        let url = harness.start_store(&[]).await;
        harness.set_env("MUSTER_STORE", url);
        harness
    }

    /// Starts the store; returns its URL.
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

    /// Sets an environment variable for all later commands.
    pub(crate) fn set_env(&mut self, variable: &str, value: impl Into<OsString>) {
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

    /// The store's URL.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.store.as_ref().unwrap().address)
    }

    /// A client of the store.
    pub(crate) fn client(&self) -> StoreClient {
        let address = self.store.as_ref().unwrap().address;
        StoreClient::connect(StoreEndpoints::new([format!("http://{address}")])).unwrap()
    }

    pub(crate) fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
        // The environment of the test run must not change the test.
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

    /// Runs `muster` with these arguments.
    pub(crate) async fn muster(&self, arguments: &str) -> Output {
        self.muster_with_stdin(arguments, "").await
    }

    /// Runs `muster` with these arguments and text on its standard input.
    pub(crate) async fn muster_with_stdin(&self, arguments: &str, input: &str) -> Output {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped());
        let input = input.to_owned();
        // The store runs in this process, so its threads must not be blocked.
        let output = tokio::task::spawn_blocking(move || {
            let mut child = command.spawn().unwrap();
            // A command that does not read its input closes it, which makes this write fail.
            let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
            child.wait_with_output().unwrap()
        });
        let output = tokio::time::timeout(TIMEOUT, output).await.expect("muster ends").unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Output { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Starts a `muster` that keeps running, such as a watch.
    pub(crate) fn start(&self, arguments: &str) -> BackgroundCommand {
        let mut child = self.command(arguments).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok());
        });
        BackgroundCommand { child, lines, seen: Vec::new() }
    }

    /// Shuts the store down and waits for it.
    pub(crate) async fn stop_store(&mut self) {
        self.shutdown.trigger();
        if let Some(running) = self.store.take() {
            running.stopped().await.unwrap();
        }
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.shutdown.trigger();
    }
}

/// A running `muster`; it is killed on drop.
pub(crate) struct BackgroundCommand {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl BackgroundCommand {
    /// Reads until a line has these words in this order; returns the line.
    pub(crate) async fn wait_for_line(&mut self, words: &[&str]) -> String {
        loop {
            let line = tokio::task::block_in_place(|| self.lines.recv_timeout(TIMEOUT));
            let line = line.unwrap_or_else(|error| {
                let stderr_text = self.stderr_text();
                panic!("no {words:?}: {error}; seen {:#?}; {stderr_text}", self.seen)
            });
            self.seen.push(line.clone());
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

    fn stderr_text(&mut self) -> String {
        let _ = self.child.kill();
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for BackgroundCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A sample manifest, which the unit tests use too. The lease is returned without its owner reference, because the
/// store deletes records whose owning node does not exist.
pub(crate) fn sample(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/samples").join(name);
    let mut text = std::fs::read_to_string(path).unwrap();
    // A store that creates the sample refuses what its pods would miss, and the command warns of the rest.
    for absent in [
        "    - {name: TOKEN, valueFrom: {secretKeyRef: {name: web, key: token}}}\n",
        "    - {name: settings, mountPath: /etc/web, readOnly: true}\n",
        "  - {name: settings, configMap: {name: web}}\n",
        "  serviceAccountName: web\n",
        "registry.example/",
    ] {
        text = text.replace(absent, "");
    }
    text = text.replace("web:1", "web").replace("{sizeLimit: 1Gi}", "{}");
    let owner = text.find("  ownerReferences:\n  - {apiVersion: v1, kind: Node").zip(text.find("spec:\n"));
    match owner {
        Some((start, end)) => format!("{}{}", &text[..start], &text[end..]),
        None => text,
    }
}

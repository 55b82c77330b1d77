//! The real kubectl, against the Kubernetes API of a store.

#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::tools::tool;
use crate::{TIMEOUT, TestStore, within};

/// kubectl sends five requests a second at most, and a test may have it send many.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(300);

/// The flag with which a store serves the Kubernetes API on a free port.
pub const LISTEN: &str = "--kubernetes-listen=127.0.0.1:0";

/// kubectl for one caller, with a home directory of its own.
pub struct Kubectl {
    home: TempDir,
    connection: Vec<String>,
}

/// How a command of kubectl ended.
#[derive(Clone, Debug)]
pub struct Ended {
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
}

impl Kubectl {
    /// kubectl for an administrator of a store without TLS.
    pub fn of(store: &TestStore) -> Kubectl {
        Kubectl::with(vec![format!("--server={}", store.kubernetes_url())])
    }

    /// kubectl for a caller with that certificate.
    ///
    /// # Panics
    /// When the store has no TLS.
    pub fn of_caller(store: &TestStore, common_name: &str, organization: &str) -> Kubectl {
        let authority = store.authority().expect("a store with TLS");
        let [cert, key] = authority.issue(common_name, organization);
        let files =
            [("certificate-authority", authority.own()), ("client-certificate", cert), ("client-key", key)];
        let files = files.iter().map(|(flag, path)| format!("--{flag}={}", path.display()));
        Kubectl::with(files.chain([format!("--server={}", store.kubernetes_url())]).collect())
    }

    /// kubectl for the agent of a node.
    pub fn of_node(store: &TestStore, name: &str) -> Kubectl {
        Kubectl::of_caller(store, &format!("node:{name}"), "muster:nodes")
    }

    /// kubectl with that kubeconfig.
    pub fn with_config(file: &Path) -> Kubectl {
        Kubectl::with(vec![format!("--kubeconfig={}", file.display())])
    }

    fn with(connection: Vec<String>) -> Kubectl {
        Kubectl { home: tempfile::tempdir().expect("a home directory"), connection }
    }

    /// A command with these words, without settings of the test's own environment.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(tool("kubectl"));
        command
            .env_clear()
            .env("HOME", self.home.path())
            .env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.args(&self.connection).args(words).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A file in the home directory.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.home.path().join(name);
        std::fs::write(&path, text).expect("a file can be written");
        path
    }

    /// Runs a command to its end.
    pub async fn try_run(&self, words: &[&str]) -> Ended {
        wait(self.command(words), String::new()).await
    }

    /// Runs a command that must succeed; returns its output.
    ///
    /// # Panics
    /// When it fails, with what it said.
    pub async fn run(&self, words: &[&str]) -> String {
        succeeded(words, self.try_run(words).await)
    }

    /// Runs a command that must succeed, with this standard input.
    ///
    /// # Panics
    /// When it fails, with what it said.
    pub async fn run_with(&self, words: &[&str], input: &str) -> String {
        let mut command = self.command(words);
        command.stdin(Stdio::piped());
        succeeded(words, wait(command, input.to_owned()).await)
    }

    /// Runs a command with standard input to its end.
    pub async fn try_run_with(&self, words: &[&str], input: &str) -> Ended {
        let mut command = self.command(words);
        command.stdin(Stdio::piped());
        wait(command, input.to_owned()).await
    }

    /// Runs a command that must succeed, with an environment variable; returns its output.
    ///
    /// # Panics
    /// When it fails, with what it said.
    pub async fn run_in(&self, variable: (&str, &str), words: &[&str]) -> String {
        let mut command = self.command(words);
        command.env(variable.0, variable.1);
        succeeded(words, wait(command, String::new()).await)
    }

    /// Runs a command that must fail; returns what it complained of.
    ///
    /// # Panics
    /// When it succeeds.
    pub async fn fail(&self, words: &[&str]) -> String {
        let ended = self.try_run(words).await;
        assert!(!ended.success, "kubectl {} succeeded: {}", words.join(" "), ended.stdout);
        ended.stderr
    }

    /// An object as JSON.
    ///
    /// # Panics
    /// When it cannot be read.
    pub async fn json(&self, words: &[&str]) -> Value {
        let text = self.run(&[words, &["-o", "json"]].concat()).await;
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Starts a command that goes on, such as a watch.
    ///
    /// # Panics
    /// When kubectl cannot be started.
    pub fn follow(&self, words: &[&str]) -> Following {
        let mut child = self.command(words).spawn().expect("kubectl can be run");
        let out = child.stdout.take().expect("the output is piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).all(|line| sender.send(line).is_ok());
        });
        Following { child, lines }
    }
}

fn succeeded(words: &[&str], ended: Ended) -> String {
    assert!(ended.success, "kubectl {} failed: {}{}", words.join(" "), ended.stderr, ended.stdout);
    ended.stdout
}

async fn wait(mut command: Command, input: String) -> Ended {
    let running = tokio::task::spawn_blocking(move || {
        let mut child = command.spawn().expect("kubectl can be run");
        if let Some(mut stdin) = child.stdin.take() {
            // A command that fails early does not read all of it.
            let _ = stdin.write_all(input.as_bytes());
        }
        child.wait_with_output().expect("kubectl ends")
    });
    let ended = within(COMMAND_TIMEOUT, "the end of kubectl", running).await;
    let Output { status, stdout, stderr } = ended.expect("the thread waits");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ended { success: status.success(), stdout: text(stdout), stderr: text(stderr) }
}

/// A command that goes on. It is killed when it is dropped.
pub struct Following {
    child: Child,
    lines: Receiver<String>,
}

impl Following {
    /// The next line of its output.
    ///
    /// # Panics
    /// When none comes in time.
    pub fn line(&mut self) -> String {
        self.lines.recv_timeout(TIMEOUT).expect("another line comes in time")
    }

    /// The next line with this text in it.
    ///
    /// # Panics
    /// When none comes in time.
    pub fn line_with(&mut self, part: &str) -> String {
        loop {
            let line = self.line();
            if line.contains(part) {
                return line;
            }
        }
    }
}

impl Following {
    /// Waits until the command ends by itself, successfully.
    ///
    /// # Panics
    /// When it does not.
    pub fn end(&mut self) {
        while self.lines.recv_timeout(TIMEOUT).is_ok() {}
        let ended = self.child.wait().expect("a child can be waited for");
        assert!(ended.success(), "kubectl ended with {ended}");
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! Runs every command block of README.md and ARCHITECTURE.md.
//!
//! The info string of a fenced block is its type; an unknown type fails the test:
//!
//! - `sh`: all of these run in order, in one shell, against a running `muster up`; each must succeed;
//! - `sh fails WORD`: the same, but one command of the block must fail, with this word in its output;
//! - `sh follows`: runs until it is interrupted; it must print something;
//! - `sh builds`: builds or tests the workspace, which a test of the workspace cannot do. `cargo run --release -- ...`
//!   runs the `muster` under test with free ports, and all other commands connect to it. A script must exist;
//! - `text`: a diagram, or the output of a command.
//!
//! The documents have the default ports; the test replaces them by the free ports that it uses.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A `muster up` that is not ready by then has failed.
const TIMEOUT: Duration = Duration::from_secs(60);

const MUSTER: &str = env!("CARGO_BIN_EXE_muster");

/// The documents and the minimum number of blocks to run; fewer would mean that the parser misses blocks.
const DOCUMENTS: [(&str, usize); 2] = [("README.md", 10), ("ARCHITECTURE.md", 3)];

/// The addresses of `muster up`: the flag, the default, and the line and column of the banner with the actual address.
const LISTENERS: [(&str, &str, &str, usize); 9] = [
    ("--listen", "127.0.0.1:7400", "store", 0),
    ("--http-listen", "127.0.0.1:7401", "store", 1),
    ("--kubernetes-listen", "127.0.0.1:7480", "kubernetes", 0),
    ("--simulation-listen", "127.0.0.1:7402", "simulation", 0),
    ("--ui-listen", "127.0.0.1:7403", "page", 0),
    ("--controller-listen", "127.0.0.1:7500", "controller", 0),
    ("--controller-http-listen", "127.0.0.1:7501", "controller", 1),
    ("--agent-listen", "127.0.0.1:7600", "agent", 0),
    ("--agent-http-listen", "127.0.0.1:7601", "agent", 1),
];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Runs,
    /// With this word in the output.
    Fails(String),
    Follows,
    Builds,
    Text,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    /// The line of its opening fence.
    line: usize,
    kind: Kind,
    text: String,
}

/// The fenced blocks of a document; an error names the line of a block that is not valid.
fn blocks(document: &str) -> Result<Vec<Block>, String> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in document.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match (fence, &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(info), None) => {
                let kind = match info.trim() {
                    "sh" => Kind::Runs,
                    info if let Some(word) = info.strip_prefix("sh fails ") => Kind::Fails(word.to_owned()),
                    "sh follows" => Kind::Follows,
                    "sh builds" => Kind::Builds,
                    "text" => Kind::Text,
                    other => return Err(format!("line {}: unknown block type `{other}`", number + 1)),
                };
                open = Some(Block { line: number + 1, kind, text: String::new() });
            }
            (None, Some(block)) => block.text.push_str(&format!("{line}\n")),
            (None, None) => {}
        }
    }
    match open {
        Some(block) => Err(format!("line {}: the block is not closed", block.line)),
        None => Ok(blocks),
    }
}

/// Shell code that checks that a command failed with a word in its output. `set -e` is off during the command, because
/// it would end the whole script.
const CHECK_FAILED: &str = "\
check_failed() {
    set -e
    echo \"$3\" >&2
    if [ $1 = 0 ]; then echo 'this should have failed' >&2; exit 1; fi
    case $3 in *\"$2\"*) ;; *) echo \"the output should have $2\" >&2; exit 1;; esac
}
set +e
";

/// Shell code that waits until the background command has printed something, then ends it.
const CHECK_FOLLOWS: &str = "\
follower=$!
for _ in $(seq 600); do [ -s $output ] && break; kill -0 $follower; sleep 0.1; done
kill $follower
[ -s $output ]
rm $output
";

/// One script with all the blocks that run.
fn script(name: &str, blocks: &[Block]) -> String {
    let mut script = String::from("set -euo pipefail\n");
    for Block { line, kind, text } in blocks {
        let text = text.trim_end();
        let commands = match kind {
            Kind::Runs => format!("{text}\n"),
            Kind::Fails(word) => {
                format!(
                    "{CHECK_FAILED}output=$(exec 2>&1; set -e; {text}\n)\ncheck_failed $? '{word}' \"$output\"\n"
                )
            }
            Kind::Follows => format!("output=$(mktemp)\n{text} > $output &\n{CHECK_FOLLOWS}"),
            Kind::Builds | Kind::Text => continue,
        };
        script.push_str(&format!("echo '=== {name}:{line}' >&2\n{commands}"));
    }
    script
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(name: &str) -> Vec<Block> {
    let text = std::fs::read_to_string(workspace().join(name)).unwrap();
    blocks(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Removes the settings of the test run, which must not change the test.
fn clean(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MUSTER_") {
            command.env_remove(name);
        }
    }
    // The memory usage of the machine and the contexts of the user must not change the test either.
    command.env("MUSTER_EVICTION_HARD", "memory.available<1Mi").env("XDG_CONFIG_HOME", "/nonexistent")
}

/// A running `muster up`; it is killed on drop.
struct Up {
    child: Child,
    output: Vec<String>,
    /// Holds what a killed process leaves behind.
    _temporary: TempDir,
}

impl Up {
    /// Starts `muster up` with the arguments of a document; its default data directory is a temporary one.
    fn start(arguments: &[String]) -> Up {
        let mut command = Command::new(MUSTER);
        let temporary = tempfile::tempdir().unwrap();
        clean(&mut command).env("TMPDIR", temporary.path()).env("XDG_STATE_HOME", temporary.path());
        command.args(arguments).stdout(Stdio::piped());
        for (flag, ..) in LISTENERS {
            command.args([flag, "127.0.0.1:0"]);
        }
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok());
        });
        let mut up = Up { child, output: Vec::new(), _temporary: temporary };
        while up.output.last().is_none_or(|line| line != "ready") {
            match lines.recv_timeout(TIMEOUT) {
                Ok(line) => up.output.push(line),
                Err(error) => panic!("never ready: {error}; {:?}", up.output),
            }
        }
        up
    }

    /// Stops the process as ctrl-C does.
    fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "`muster up` exited with {status}");
    }

    /// The text with the actual addresses instead of the defaults.
    fn with_actual_ports(&self, text: &str) -> String {
        LISTENERS.iter().fold(text.to_owned(), |text, (_, default, component, column)| {
            let line = self.output.iter().find_map(|line| line.trim_start().strip_prefix(component)).unwrap();
            let address = line.split_whitespace().nth(*column).unwrap().trim_start_matches("http://");
            text.replace(default, address.split('/').next().unwrap())
        })
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines of the blocks that build or test the workspace.
fn build_lines(blocks: &[Block]) -> Vec<&str> {
    let builds = blocks.iter().filter(|block| block.kind == Kind::Builds);
    builds.flat_map(|block| block.text.lines()).collect()
}

const CARGO_RUN: &str = "cargo run --release -- ";

#[test]
fn every_command_of_the_documents_works() {
    let readme = read("README.md");
    let runs: Vec<&str> =
        build_lines(&readme).into_iter().filter_map(|line| line.strip_prefix(CARGO_RUN)).collect();
    let [first] = runs.as_slice() else { panic!("README.md must start Muster once, not with {runs:?}") };
    let up = Up::start(&first.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    for (name, minimum) in DOCUMENTS {
        let blocks = read(name);
        let run = blocks.iter().filter(|block| !matches!(block.kind, Kind::Builds | Kind::Text)).count();
        assert!(run >= minimum, "{name} has {run} blocks to run, expected at least {minimum}");
        let script = up.with_actual_ports(&script(name, &blocks));
        let binaries = Path::new(MUSTER).parent().unwrap();
        let script = script.replace("$PWD/target/release", binaries.to_str().unwrap());
        let mut shell = Command::new("bash");
        clean(&mut shell)
            .args(["-c", &script])
            .env("MUSTER_STORE", up.with_actual_ports("http://127.0.0.1:7400"))
            .env("MUSTER_CONTROLLER", up.with_actual_ports("http://127.0.0.1:7500"))
            // The demo must not use this directory.
            .env("MUSTER_UP_DATA_DIR", "/nonexistent")
            .current_dir(workspace())
            .stdin(Stdio::null());
        let output = shell.output().unwrap();
        assert!(
            output.status.success(),
            "{name} failed with {}\n{}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    up.stop();
}

#[test]
fn every_named_script_is_executable() {
    for (name, _) in DOCUMENTS {
        let blocks = read(name);
        for line in build_lines(&blocks).into_iter().filter(|line| !line.starts_with(CARGO_RUN)) {
            let script = std::fs::metadata(workspace().join(line));
            let mode = script.unwrap_or_else(|error| panic!("{name}: {line}: {error}")).permissions().mode();
            assert!(mode & 0o111 != 0, "{name}: {line} is not executable");
        }
    }
}

#[test]
fn a_block_succeeds_only_as_its_type_requires() {
    let succeeds = |block: &str| {
        let script = script("x", &blocks(block).unwrap());
        Command::new("bash").args(["-c", &script]).stderr(Stdio::null()).status().unwrap().success()
    };
    for (block, expected) in [
        ("```sh\ntrue\n```", true),
        ("```sh\nfalse\ntrue\n```", false),
        ("```sh fails wrong\necho it is wrong >&2; false\n```", true),
        ("```sh fails wrong\necho it is wrong >&2\n```", false),
        ("```sh fails wrong\nnot-a-command\n```", false),
        ("```sh fails wrong\nnot-a-command\necho it is wrong; false\n```", false),
        ("```sh fails wrong\nfalse # wrong\n```\n```sh\ntrue\n```", false),
        ("```sh fails wrong\necho wrong; false\n```\n```sh\nfalse\n```", false),
        ("```sh follows\n(echo a; exec sleep 9)\n```", true),
        ("```sh follows\ntrue\n```", false),
    ] {
        assert_eq!(succeeds(block), expected, "{block}");
    }
}

#[test]
fn cargo_run_runs_muster() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version", "1", "--no-deps", "--offline"]).current_dir(workspace());
    let output = cargo.output().unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let default = metadata["workspace_default_members"].as_array().unwrap();
    let own = metadata["packages"].as_array().unwrap().iter().find(|package| package["name"] == "muster");
    assert_eq!(default, &[own.unwrap()["id"].clone()]);
}

#[test]
fn a_block_with_an_unknown_type_or_without_an_end_is_refused() {
    let block = |line, kind, text: &str| Block { line, kind, text: text.to_owned() };
    assert_eq!(
        blocks("a\n```sh\nb\n```\n```text\nc\n```\n"),
        Ok(vec![block(2, Kind::Runs, "b\n"), block(5, Kind::Text, "c\n")])
    );
    assert_eq!(blocks("```bash\na\n```\n"), Err("line 1: unknown block type `bash`".to_owned()));
    assert_eq!(blocks("```\na\n```\n"), Err("line 1: unknown block type ``".to_owned()));
    assert_eq!(
        blocks("```sh fails\na\n```\n"),
        Err("line 1: unknown block type `sh fails`".to_owned()),
        "the word is required"
    );
    assert_eq!(blocks("\n```sh\na\n"), Err("line 2: the block is not closed".to_owned()));
}

//! Every command block of README.md and ARCHITECTURE.md does what it says.
//!
//! The info string of a fenced block says what it is, and an unknown one fails the test:
//!
//! - `sh`: all of them run in their order, in one shell, against a running `muster up`; each must succeed;
//! - `sh fails WORD`: the same, but one command of it must be refused, with this word in what is said;
//! - `sh follows`: goes on until it is interrupted; it must have something to say;
//! - `sh builds`: builds or tests the workspace, which a test of the workspace cannot. `cargo run --release -- ...` is run
//!   as the `muster` under test, with free ports, and is the one that all other commands speak to. A script must exist;
//! - `text`: a picture, or what a command said.
//!
//! The documents name the usual ports; the test's are free ones, and take their place.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A Muster that is not ready by then never will be.
const PATIENCE: Duration = Duration::from_secs(60);

const MUSTER: &str = env!("CARGO_BIN_EXE_muster");

/// The documents, and how many of their blocks are run at least: less would mean that they are not found any more.
const DOCUMENTS: [(&str, usize); 2] = [("README.md", 10), ("ARCHITECTURE.md", 3)];

/// What `muster up` listens on: the flag, the usual address, and where its greeting tells the one it took.
const PLACES: [(&str, &str, &str, usize); 7] = [
    ("--listen", "127.0.0.1:7400", "store", 0),
    ("--http-listen", "127.0.0.1:7401", "store", 1),
    ("--simulation-listen", "127.0.0.1:7402", "simulation", 0),
    ("--controller-listen", "127.0.0.1:7500", "controller", 0),
    ("--controller-http-listen", "127.0.0.1:7501", "controller", 1),
    ("--agent-listen", "127.0.0.1:7600", "agent", 0),
    ("--agent-http-listen", "127.0.0.1:7601", "agent", 1),
];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Runs,
    /// With this in what is said.
    Fails(String),
    Follows,
    Builds,
    Text,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    /// Where it begins.
    line: usize,
    kind: Kind,
    text: String,
}

/// The fenced blocks of a document, or the line of one that cannot be understood.
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
                    other => return Err(format!("line {}: no test knows blocks of `{other}`", number + 1)),
                };
                open = Some(Block { line: number + 1, kind, text: String::new() });
            }
            (None, Some(block)) => block.text.push_str(&format!("{line}\n")),
            (None, None) => {}
        }
    }
    match open {
        Some(block) => Err(format!("line {}: the block has no end", block.line)),
        None => Ok(blocks),
    }
}

/// What sees to it that a command was refused, and by which word. `set -e` is off meanwhile, as it ends the whole script.
const REFUSED: &str = "\
refused() {
    set -e
    echo \"$3\" >&2
    if [ $1 = 0 ]; then echo 'this should have been refused' >&2; exit 1; fi
    case $3 in *\"$2\"*) ;; *) echo \"this should have said $2\" >&2; exit 1;; esac
}
set +e
";

/// What waits until the follower has said something, then ends it.
const HEARD: &str = "\
follower=$!
for _ in $(seq 600); do [ -s $followed ] && break; kill -0 $follower; sleep 0.1; done
kill $follower
[ -s $followed ]
rm $followed
";

/// One script of all the blocks that run.
fn script(name: &str, blocks: &[Block]) -> String {
    let mut script = String::from("set -euo pipefail\n");
    for Block { line, kind, text } in blocks {
        let text = text.trim_end();
        let commands = match kind {
            Kind::Runs => format!("{text}\n"),
            Kind::Fails(word) => {
                format!("{REFUSED}said=$(exec 2>&1; set -e; {text}\n)\nrefused $? '{word}' \"$said\"\n")
            }
            Kind::Follows => format!("followed=$(mktemp)\n{text} > $followed &\n{HEARD}"),
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

/// The tester's own settings are not the test's.
fn clean(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MUSTER_") {
            command.env_remove(name);
        }
    }
    // Nor how full the machine is, nor the tester's contexts.
    command.env("MUSTER_EVICTION_HARD", "memory.available<1Mi").env("XDG_CONFIG_HOME", "/nonexistent")
}

/// A running `muster up`; it does not outlive the test.
struct Up {
    child: Child,
    said: Vec<String>,
    /// What it leaves behind goes with this.
    _temporary: TempDir,
}

impl Up {
    /// Starts it with the arguments that a document gives it; its usual directory is a temporary one.
    fn start(arguments: &[String]) -> Up {
        let mut command = Command::new(MUSTER);
        let temporary = tempfile::tempdir().unwrap();
        clean(&mut command).env("TMPDIR", temporary.path()).env("XDG_STATE_HOME", temporary.path());
        command.args(arguments).stdout(Stdio::piped());
        for (flag, ..) in PLACES {
            command.args([flag, "127.0.0.1:0"]);
        }
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok());
        });
        let mut up = Up { child, said: Vec::new(), _temporary: temporary };
        while up.said.last().is_none_or(|line| line != "ready") {
            match lines.recv_timeout(PATIENCE) {
                Ok(line) => up.said.push(line),
                Err(error) => panic!("never ready: {error}; {:?}", up.said),
            }
        }
        up
    }

    /// Stops it as ctrl-C does.
    fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "it ended with {status}");
    }

    /// The text with the addresses that were really taken.
    fn with_own_ports(&self, text: &str) -> String {
        PLACES.iter().fold(text.to_owned(), |text, (_, usual, part, column)| {
            let line = self.said.iter().find_map(|line| line.trim_start().strip_prefix(part)).unwrap();
            let address = line.split_whitespace().nth(*column).unwrap().trim_start_matches("http://");
            text.replace(usual, address.split('/').next().unwrap())
        })
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines that build or test the workspace.
fn building(blocks: &[Block]) -> Vec<&str> {
    let building = blocks.iter().filter(|block| block.kind == Kind::Builds);
    building.flat_map(|block| block.text.lines()).collect()
}

const CARGO_RUN: &str = "cargo run --release -- ";

#[test]
fn every_command_of_the_documents_does_what_it_says() {
    let tour = read("README.md");
    let runs: Vec<&str> =
        building(&tour).into_iter().filter_map(|line| line.strip_prefix(CARGO_RUN)).collect();
    let [first] = runs.as_slice() else { panic!("README.md starts Muster once, not by {runs:?}") };
    let up = Up::start(&first.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    for (name, least) in DOCUMENTS {
        let blocks = read(name);
        let run = blocks.iter().filter(|block| !matches!(block.kind, Kind::Builds | Kind::Text)).count();
        assert!(run >= least, "{name} has {run} blocks to run, and had {least}");
        let script = up.with_own_ports(&script(name, &blocks));
        let binaries = Path::new(MUSTER).parent().unwrap();
        let script = script.replace("$PWD/target/release", binaries.to_str().unwrap());
        let mut shell = Command::new("bash");
        clean(&mut shell)
            .args(["-c", &script])
            .env("MUSTER_STORE", up.with_own_ports("http://127.0.0.1:7400"))
            .env("MUSTER_CONTROLLER", up.with_own_ports("http://127.0.0.1:7500"))
            // The demonstration keeps nothing there, nor minds that others would.
            .env("MUSTER_UP_DATA_DIR", "/nonexistent")
            .current_dir(workspace())
            .stdin(Stdio::null());
        let output = shell.output().unwrap();
        assert!(
            output.status.success(),
            "{name} ended with {}\n{}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    up.stop();
}

#[test]
fn a_script_that_is_named_can_be_run() {
    for (name, _) in DOCUMENTS {
        let blocks = read(name);
        for line in building(&blocks).into_iter().filter(|line| !line.starts_with(CARGO_RUN)) {
            let script = std::fs::metadata(workspace().join(line));
            let mode = script.unwrap_or_else(|error| panic!("{name}: {line}: {error}")).permissions().mode();
            assert!(mode & 0o111 != 0, "{name}: {line} cannot be run");
        }
    }
}

#[test]
fn a_block_counts_only_for_the_right_reason() {
    let ends = |block: &str| {
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
        assert_eq!(ends(block), expected, "{block}");
    }
}

#[test]
fn cargo_run_means_muster() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version", "1", "--no-deps", "--offline"]).current_dir(workspace());
    let output = cargo.output().unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let default = metadata["workspace_default_members"].as_array().unwrap();
    let own = metadata["packages"].as_array().unwrap().iter().find(|package| package["name"] == "muster");
    assert_eq!(default, &[own.unwrap()["id"].clone()]);
}

#[test]
fn a_block_of_an_unknown_kind_or_without_an_end_is_refused() {
    let block = |line, kind, text: &str| Block { line, kind, text: text.to_owned() };
    assert_eq!(
        blocks("a\n```sh\nb\n```\n```text\nc\n```\n"),
        Ok(vec![block(2, Kind::Runs, "b\n"), block(5, Kind::Text, "c\n")])
    );
    assert_eq!(blocks("```bash\na\n```\n"), Err("line 1: no test knows blocks of `bash`".to_owned()));
    assert_eq!(blocks("```\na\n```\n"), Err("line 1: no test knows blocks of ``".to_owned()));
    assert_eq!(
        blocks("```sh fails\na\n```\n"),
        Err("line 1: no test knows blocks of `sh fails`".to_owned()),
        "of what it fails must be said"
    );
    assert_eq!(blocks("\n```sh\na\n"), Err("line 2: the block has no end".to_owned()));
}

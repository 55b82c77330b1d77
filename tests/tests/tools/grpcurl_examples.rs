//! All examples of `deploy/grpcurl.md`, run in order with the real grpcurl against the real binaries. Every call of the
//! schema must have an example.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use muster_tests::agent_process::AgentHost;
use muster_tests::controller_process::ControllerProcess;
use muster_tests::markdown_examples::{Example, calls, examples, missing};
use muster_tests::store_process::StoreLaunch;
use muster_tests::tools::{own_tools, repository, tool};
use muster_tests::{TestStore, eventually};
use prost::Message;
use prost_types::FileDescriptorSet;
use serde_json::Value;

/// Implemented by customers, not by Muster.
const NOT_OURS: &str = "muster.v1.CloudProviderService";

fn documented_examples() -> Vec<Example> {
    let path = repository().join("deploy/grpcurl.md");
    examples(&fs::read_to_string(&path).unwrap())
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All calls of the schema, and the health checks that every process has.
fn schema() -> BTreeSet<String> {
    let files = FileDescriptorSet::decode(muster_proto::DESCRIPTORS).unwrap().file;
    let mut calls: BTreeSet<String> =
        ["Check", "Watch"].map(|method| format!("grpc.health.v1.Health/{method}")).into();
    for file in files.iter().filter(|file| file.package() == "muster.v1") {
        for service in &file.service {
            let name = format!("muster.v1.{}", service.name());
            let methods = service.method.iter().filter(|_| name != NOT_OURS);
            calls.extend(methods.map(|method| format!("{name}/{}", method.name())));
        }
    }
    calls
}

#[test]
fn every_call_of_the_schema_has_an_example() {
    let documented = documented_examples();
    let shown: BTreeSet<String> =
        documented.iter().flat_map(|example| calls(&example.script)).map(str::to_owned).collect();
    let schema = schema();
    let lacking: Vec<_> = schema.difference(&shown).collect();
    assert!(lacking.is_empty(), "deploy/grpcurl.md has no example of {lacking:?}");
    let unknown: Vec<_> = shown.difference(&schema).collect();
    assert!(unknown.is_empty(), "deploy/grpcurl.md has calls that do not exist: {unknown:?}");
}

/// The result of an example.
struct Outcome {
    failed: bool,
    stdout: String,
    stderr: String,
}

/// Runs all examples in one shell, since they build on each other's variables.
fn run(documented: &[Example], directory: &Path, variables: &[(&str, &str)]) -> Vec<Outcome> {
    let file = |number: usize, what: &str| -> PathBuf { directory.join(format!("{number}.{what}")) };
    // An example fails when any of its commands fails.
    let mut script = "set -u\ntrap 'failed=$?' ERR\n".to_owned();
    for (number, example) in documented.iter().enumerate() {
        let (out, err, code) = (file(number, "out"), file(number, "err"), file(number, "code"));
        script += &format!(
            "failed=0\n{{\n{}\n}} >'{}' 2>'{}'\necho $failed >'{}'\n",
            example.script,
            out.display(),
            err.display(),
            code.display()
        );
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("timeout");
    shell.args(["600", "bash", "-c", &script]).stdin(Stdio::null()).envs(variables.iter().copied());
    shell.env("PATH", format!("{}:{path}", own_tools().display()));
    let ended = shell.status().unwrap();
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    let outcomes = (0..documented.len()).map(|number| Outcome {
        failed: read(file(number, "code")).trim() != "0",
        stdout: read(file(number, "out")),
        stderr: read(file(number, "err")),
    });
    let outcomes = outcomes.collect();
    println!("the shell ended with {ended}");
    outcomes
}

/// How the result differs from the document.
fn difference(example: &Example, outcome: &Outcome) -> Option<String> {
    let complaint = || {
        if outcome.failed == example.complaints.is_empty() {
            return Some(if outcome.failed { "it failed".to_owned() } else { "it did not fail".to_owned() });
        }
        let missing_text = example.complaints.iter().find(|complaint| !outcome.stderr.contains(*complaint));
        if let Some(missing_text) = missing_text {
            return Some(format!("this is not in the error: {missing_text}"));
        }
        if example.answers.is_empty() {
            return None;
        }
        let received: Result<Vec<Value>, _> =
            serde_json::Deserializer::from_str(&outcome.stdout).into_iter().collect();
        match received {
            Ok(received) => {
                missing(&example.answers, &received).map(|shown| format!("this was not received: {shown}"))
            }
            Err(error) => Some(format!("the output is not JSON: {error}")),
        }
    };
    let Outcome { stdout, stderr, .. } = outcome;
    let Example { line, script, .. } = example;
    complaint()
        .map(|what| format!("deploy/grpcurl.md, line {line}: {what}\n{script}\nprinted\n{stdout}{stderr}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_example_works_as_it_is_written() {
    // Fails here with a hint when grpcurl is not installed.
    tool("grpcurl");
    let directory = tempfile::tempdir().unwrap();
    let store = StoreLaunch::on(&directory.path().join("store")).start();
    let controller = ControllerProcess::start(&store.url(), &[]);
    let host = AgentHost::new();
    let agent = host.agent("machine", &store.url()).start();
    eventually(muster_tests::TIMEOUT, "the machine is registered", || async {
        agent.state().await.acknowledged_status_at
    })
    .await;
    eventually(muster_tests::TIMEOUT, "the controller leads", || async {
        muster_rpc::health_command::check(controller.http_address()).ok()
    })
    .await;
    let secure = TestStore::secure().await;
    let certificates = secure.authority().unwrap().credentials("eva", "muster:admins");

    let address = |url: String| url.split_once("://").unwrap().1.to_owned();
    let (store, controller, agent) = (address(store.url()), address(controller.url()), address(agent.url()));
    let variables = [
        ("STORE", store.as_str()),
        ("CONTROLLER", &controller),
        ("AGENT", &agent),
        ("SECURE_STORE", &address(secure.url())),
        ("CERTIFICATES", certificates.to_str().unwrap()),
    ];
    let documented = documented_examples();
    let outcomes = tokio::task::block_in_place(|| run(&documented, directory.path(), &variables));
    let differences =
        documented.iter().zip(&outcomes).filter_map(|(example, outcome)| difference(example, outcome));
    let differences: Vec<_> = differences.collect();
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}

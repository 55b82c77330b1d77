//! `deploy/compose.yaml` with the real docker-compose: Muster's own services, with certificates and without TLS. The
//! images of others (Jaeger, Prometheus, Grafana) would have to be pulled and are left out.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]
#![allow(clippy::disallowed_methods, reason = "real containers run by the real clock")]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use muster_tests::docker::{Engine, TAG};
use muster_tests::tools::{output_of, repository, tool};
use serde_json::Value;
use tempfile::TempDir;

/// What takes longer than this has failed.
const TIMEOUT: Duration = Duration::from_secs(90);

/// The file publishes fixed ports: one test at a time.
static PORTS: Mutex<()> = Mutex::new(());

/// A project of docker-compose.
struct Project {
    engine: Arc<Engine>,
    /// Holds the compose file and the files that it mounts.
    directory: TempDir,
    profile: &'static str,
    _ports: MutexGuard<'static, ()>,
}

impl Project {
    fn new(profile: &'static str) -> Project {
        let ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
        let (engine, directory) = (Engine::shared(), tempfile::tempdir().unwrap());
        for file in ["compose.yaml", ".env"] {
            fs::copy(repository().join("deploy").join(file), directory.path().join(file)).unwrap();
        }
        Project { engine, directory, profile, _ports: ports }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn compose(&self, args: &[&str]) -> Command {
        let mut compose = Command::new(tool("docker-compose"));
        compose
            .arg("--file")
            .arg(self.path("compose.yaml"))
            .args(["--project-name", self.profile])
            .args(args);
        compose.env("DOCKER_HOST", self.engine.address()).env("MUSTER_TAG", TAG);
        compose.env("COMPOSE_PROFILES", self.profile);
        compose
    }

    /// Waits until that many nodes are Ready, through the published port.
    fn wait_ready(&self, nodes: usize, security: &[&str]) {
        let mut listed = self.engine.in_network(&tool("grpcurl"));
        listed.args(security).args(["localhost:7400", "muster.v1.NodeService/ListNodes"]);
        self.wait(|| {
            let output = listed.output().unwrap();
            let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let ready =
                answer["nodes"].as_array().into_iter().flatten().filter(|node| is_ready(node)).count();
            let said = String::from_utf8_lossy(&output.stderr);
            if ready == nodes { Ok(()) } else { Err(format!("{ready} nodes are ready\n{said}")) }
        });
    }

    /// Repeats a check until it succeeds; panics with its last error and the logs of all services.
    fn wait(&self, mut look: impl FnMut() -> Result<(), String>) {
        let deadline = Instant::now() + TIMEOUT;
        while let Err(trouble) = look() {
            if Instant::now() > deadline {
                let logs = output_of(&mut self.compose(&["logs", "--no-color"]));
                panic!("{trouble}\n{logs}");
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// The last renewal of each node lease, without TLS.
    fn renewals(&self) -> BTreeMap<String, String> {
        let mut listed = self.engine.in_network(&tool("grpcurl"));
        listed.args(["-plaintext", "-d", r#"{"namespace": "kube-node-lease"}"#]);
        listed.args(["localhost:7400", "muster.v1.LeaseService/ListLeases"]);
        let answer: Value = serde_json::from_str(&output_of(&mut listed)).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let leases = answer["leases"].as_array().cloned().unwrap_or_default();
        leases
            .iter()
            .map(|lease| (text(&lease["metadata"]["name"]), text(&lease["spec"]["renewTime"])))
            .collect()
    }
}

impl Drop for Project {
    fn drop(&mut self) {
        // What fails here is removed with the engine.
        let _ = self.compose(&["down", "--volumes", "--timeout", "5"]).output();
    }
}

fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

#[test]
fn a_fleet_without_tls_can_be_scaled() {
    let project = Project::new("clear");
    let parts = ["store", "controller", "agent"];
    output_of(project.compose(&["up", "--detach", "--scale", "agent=2"]).args(parts));
    project.wait_ready(2, &["-plaintext"]);
    output_of(project.compose(&["up", "--detach", "--scale", "agent=3"]).args(parts));
    project.wait_ready(3, &["-plaintext"]);
}

#[test]
fn agents_in_recreated_containers_keep_their_nodes() {
    let project = Project::new("clear");
    output_of(&mut project.compose(&[
        "up",
        "--detach",
        "--scale",
        "agent=2",
        "store",
        "controller",
        "agent",
    ]));
    project.wait_ready(2, &["-plaintext"]);
    // The new containers have other host names and the volumes of the old ones.
    output_of(&mut project.compose(&[
        "up",
        "--detach",
        "--force-recreate",
        "--no-deps",
        "--scale",
        "agent=2",
        "agent",
    ]));
    // The old containers are gone: renewals from now on come from the new ones.
    let before = project.renewals();
    assert_eq!(before.len(), 2, "{before:?}");
    project.wait(|| {
        let now = project.renewals();
        let is_renewed = |(node, at): (&String, &String)| before.get(node).is_some_and(|before| before != at);
        if now.len() == 2 && now.iter().all(is_renewed) {
            return Ok(());
        }
        Err(format!("the old leases are not renewed: {before:?}, then {now:?}"))
    });
    project.wait_ready(2, &["-plaintext"]);
}

#[test]
fn by_default_certificates_are_made_at_the_first_start_and_required() {
    let project = Project::new("mtls");
    let parts = ["store-mtls", "controller-mtls", "agent-1-mtls", "agent-2-mtls"];
    let up = || {
        let mut up = project.compose(&["up", "--detach"]);
        // The profile is that of the file `.env`.
        output_of(up.env_remove("COMPOSE_PROFILES").args(parts));
    };
    up();
    // As the page says.
    let authority = output_of(&mut project.compose(&["ps", "--all", "--quiet", "authority"]));
    let copy = |file: &str| {
        let to = project.path(file);
        let from = format!("{}:/authority/{file}", authority.trim());
        output_of(project.engine.docker(["cp", &from]).arg(&to));
        to.display().to_string()
    };
    let [ca, cert, key] = ["ca.crt", "admin.crt", "admin.key"].map(copy);
    let security = ["-cacert", &ca, "-cert", &cert, "-key", &key];
    project.wait_ready(2, &security);
    let mut stranger = project.engine.in_network(&tool("grpcurl"));
    stranger.args(["-insecure", "localhost:7400", "muster.v1.NodeService/ListNodes"]);
    assert!(!stranger.output().unwrap().status.success(), "a caller without a certificate was accepted");

    let agent = output_of(&mut project.compose(&["ps", "--quiet", "agent-1-mtls"]));
    let agent = project.engine.inspect(agent.trim());
    let mounts: Vec<_> =
        agent["Mounts"].as_array().unwrap().iter().map(|mount| &mount["Destination"]).collect();
    assert_eq!(
        mounts.len(),
        2,
        "an agent has its own certificate and its state, not the authority: {mounts:?}"
    );
    assert_eq!(agent["HostConfig"]["Memory"], 512 << 20, "{}", agent["HostConfig"]);
    assert_eq!(agent["HostConfig"]["PidsLimit"], 512);

    // Later starts keep the certificates.
    output_of(&mut project.compose(&["down", "--timeout", "5"]));
    up();
    project.wait_ready(2, &security);
}

//! A private Docker engine for the tests, with all images.
//!
//! It runs in its own network, mount and process namespaces: it changes no firewall rule of the machine, and when it is
//! killed, all its containers end too. This requires root.

#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::store_process::without_own_package;
use crate::tools::{output_of, repository, tool};

/// The engine must start within this time.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The cargo profile of the images. It builds quickly; these tests do not measure speed.
const PROFILE: &str = "image";
/// The tag of the images in the engine.
pub const TAG: &str = "test";

/// A running Docker engine. The engine and its containers are killed when it is dropped.
pub struct Engine {
    /// The `unshare` process that holds the engine's namespaces. Killing it kills the engine.
    namespaces: Child,
    directory: TempDir,
}

impl Engine {
    /// The engine that all tests of this process share, with the images built. It is dropped with its last user.
    pub fn shared() -> Arc<Engine> {
        static SHARED: Mutex<Weak<Engine>> = Mutex::new(Weak::new());
        // A poisoned lock is usable: the engine is stored only after it was started completely.
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let engine = Arc::new(Engine::start());
            engine.build_images();
            *shared = Arc::downgrade(&engine);
            engine
        })
    }

    fn start() -> Engine {
        let root = rustix::process::geteuid().is_root();
        assert!(root, "this test starts a Docker engine in new namespaces and must be run as root");
        let directory = tempfile::tempdir().expect("a directory for an engine");
        let at = |name: &str| directory.path().join(name);
        let log = File::create(at("log")).expect("a file for the engine's log");
        let errors = log.try_clone().expect("a second handle of it");
        let mut command = Command::new(tool("unshare"));
        command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        // A new network namespace has no interface that is up; the engine's DNS needs the loopback.
        command.args(["sh", "-c", "\"$0\" link set lo up && exec \"$@\""]);
        command.arg(tool("ip")).arg(tool("dockerd")).arg("--data-root").arg(at("data"));
        command.arg("--exec-root").arg(at("exec")).arg("--pidfile").arg(at("pid"));
        command.arg("--host").arg(socket(directory.path())).args(["--bridge=none", "--log-level=warn"]);
        let namespaces = command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn();
        let mut engine = Engine { namespaces: namespaces.expect("unshare can be run"), directory };
        engine.wait_until_it_answers();
        engine
    }

    fn wait_until_it_answers(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.docker(["version"]).output().is_ok_and(|output| output.status.success()) {
            let ended = self.namespaces.try_wait().expect("the engine is our child");
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
                panic!("the Docker engine does not answer ({ended:?}); its log:\n{log}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Builds the images, and one of the agent with a program for pods.
    fn build_images(&self) {
        let mut build = Command::new(repository().join("deploy/images/build"));
        let docker = self.docker([""; 0]);
        let words = std::iter::once(docker.get_program()).chain(docker.get_args());
        let docker = words.collect::<Vec<_>>().join(OsStr::new(" "));
        without_own_package(&mut build);
        build.env("PROFILE", PROFILE).env("TAG", TAG).env("DOCKER", docker);
        output_of(&mut build);

        let context = self.directory.path().join("work");
        fs::create_dir(&context).expect("a directory for an image");
        fs::write(context.join("idle.rs"), "fn main() { loop { std::thread::park(); } }").expect("a file");
        let mut rustc = Command::new("rustc");
        rustc.args(["-C", "target-feature=+crt-static", "-o", "idle", "idle.rs"]).current_dir(&context);
        output_of(&mut rustc);
        let recipe = format!("FROM muster-agent:{TAG}\nCOPY idle /idle\n");
        fs::write(context.join("Dockerfile"), recipe).expect("a file");
        let mut build = self.docker(["build", "--quiet", "--tag", &image("worker")]);
        output_of(build.arg(&context).env("DOCKER_BUILDKIT", "0"));
    }

    /// Its address, in the format of `DOCKER_HOST`.
    pub fn address(&self) -> OsString {
        socket(self.directory.path())
    }

    /// The `docker` command for this engine.
    pub fn docker(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut docker = Command::new(tool("docker"));
        docker.arg("--host").arg(self.address()).args(args);
        docker
    }

    /// The output of a `docker` command that must succeed.
    pub fn run(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
        output_of(&mut self.docker(args)).trim().to_owned()
    }

    /// The output of `docker inspect`.
    pub fn inspect(&self, name: &str) -> Value {
        let answer: Value = serde_json::from_str(&self.run(["inspect", name])).expect("JSON");
        answer[0].clone()
    }

    /// Runs a program of this machine in the engine's network namespace.
    pub fn in_network(&self, program: &Path) -> Command {
        let mut command = Command::new(tool("nsenter"));
        command.arg(format!("--net=/proc/{}/ns/net", self.namespaces.id())).arg(program);
        command
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Containers that `docker rm` removes leave no cgroups behind. The kill below removes the others.
        let containers = self.docker(["ps", "--all", "--quiet"]).output();
        let containers = containers.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let containers = containers.unwrap_or_default();
        if !containers.trim().is_empty() {
            let _ = self.docker(["rm", "--force", "--volumes"]).args(containers.split_whitespace()).output();
        }
        let _ = self.namespaces.kill();
        let _ = self.namespaces.wait();
    }
}

/// The full name of one of the images: `store`, `controller`, `agent`, or `worker`, which is the agent's image with the
/// program `/idle`, which waits until it is killed.
pub fn image(part: &str) -> String {
    format!("muster-{part}:{TAG}")
}

fn socket(directory: &Path) -> OsString {
    let mut url = OsString::from("unix://");
    url.push(PathBuf::from(directory).join("socket"));
    url
}

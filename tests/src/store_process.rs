//! The real `muster-store` as a child process.
//!
//! What a crash leaves on the disk can only be checked from outside, so these tests run the binary itself. A
//! [`StoreProcess`] is killed when it is dropped. [`write_log`] has writers that record which writes were acknowledged,
//! [`watch_log`] has watchers that record which events they received.

#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]

pub mod watch_log;
pub mod write_log;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tonic::transport::{Channel, Endpoint};

use crate::api::Api;
use crate::child_process::{ChildProcess, within, without_settings};
use crate::http;

/// What takes longer than this has failed.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// The store's binary, built from the current sources.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| build("muster-store"))
}

/// Builds the binary of a package that has the package's name; returns its path.
pub(crate) fn build(package: &str) -> PathBuf {
    build_from(package, package)
}

/// Builds one binary of a package; returns its path.
///
/// Cargo builds no other package's binary for a test, and a binary that is in the target directory may be old. So each
/// test process calls cargo, which does nothing when the binary is up to date. Naming both packages gives the
/// dependencies the same features as in `cargo test --package muster-tests`, so that only the binary is linked.
///
/// `cargo test --workspace` gives them more features, and this build would compile most of them a second time.
/// `.ci/test` therefore builds the binaries with the tests, and names their directory in `MUSTER_TEST_BINARIES`.
pub(crate) fn build_from(package: &str, binary: &str) -> PathBuf {
    if let Some(directory) = std::env::var_os("MUSTER_TEST_BINARIES") {
        return PathBuf::from(directory).join(binary);
    }
    let test = std::env::current_exe().expect("a test has a path");
    // target/<profile>/deps/<test>
    let profile_dir = test.ancestors().nth(2).expect("a test lies in a target directory");
    let target_dir = profile_dir.parent().expect("a profile's directory has a parent");
    let profile = match profile_dir.file_name().and_then(OsStr::to_str) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let mut cargo = Command::new(env!("CARGO"));
    without_own_package(&mut cargo);
    let built = cargo
        .args(["build", "--quiet", "--package", "muster-tests", "--package", package])
        .args(["--bin", binary, "--profile", profile])
        .arg("--target-dir")
        .arg(target_dir)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("cargo can be run");
    assert!(built.success(), "{binary} could not be built");
    profile_dir.join(binary)
}

/// Removes the variables that cargo sets for the test's own package: build scripts that read them would run again each
/// time, and everything that depends on their output would be compiled again.
pub(crate) fn without_own_package(command: &mut Command) {
    let own = ["CARGO_PKG_", "CARGO_MANIFEST_"].map(str::as_bytes);
    let is_own = |name: &OsStr| own.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix));
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_own(name)) {
        command.env_remove(name);
    }
}

/// A free port, for a store that is restarted at the same address.
///
/// It is outside of the kernel's range for outgoing connections: a connection could take the port while the store is
/// down, or even connect to itself.
pub fn free_port() -> u16 {
    // Each port is returned once: the test that has it may have stopped its store for a moment.
    static TAKEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let start = 20_000 + (std::process::id() as u16).wrapping_mul(7) % 10_000;
    let mut ports = (start..32_000).chain(20_000..start).filter(|port| !taken.contains(port));
    let free = ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    let free = free.expect("some port is free");
    taken.insert(free);
    free
}

/// How to start a store.
#[derive(Clone, Debug)]
pub struct StoreLaunch {
    data_dir: PathBuf,
    host: IpAddr,
    port: u16,
    args: Vec<OsString>,
    wrapper: Vec<OsString>,
}

impl StoreLaunch {
    /// A store on this directory, on a free port.
    pub fn on(data_dir: &Path) -> StoreLaunch {
        let host = IpAddr::from(Ipv4Addr::LOCALHOST);
        StoreLaunch { data_dir: data_dir.to_owned(), host, port: 0, args: Vec::new(), wrapper: Vec::new() }
    }

    /// On this port.
    #[must_use]
    pub fn at(self, port: u16) -> StoreLaunch {
        StoreLaunch { port, ..self }
    }

    /// On this port of all interfaces, without TLS.
    #[must_use]
    pub fn everywhere_at(self, port: u16) -> StoreLaunch {
        let mut launch = StoreLaunch { host: Ipv4Addr::UNSPECIFIED.into(), port, ..self };
        launch.args.push("--insecure".into());
        launch
    }

    /// Where it is served; 0 for a free port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// With one more flag.
    #[must_use]
    pub fn flag(mut self, flag: &str, value: &str) -> StoreLaunch {
        self.args.extend([flag.into(), value.into()]);
        self
    }

    /// Run by a wrapper command that takes the store's command as its last arguments and must `exec` it, so that the
    /// child's process id is the store's.
    #[must_use]
    pub fn within(mut self, wrapper: impl IntoIterator<Item = impl Into<OsString>>) -> StoreLaunch {
        self.wrapper = wrapper.into_iter().map(Into::into).collect();
        self
    }

    /// Starts it without waiting for anything.
    pub fn spawn(&self) -> StoreProcess {
        let mut command = within(&self.wrapper, binary());
        command.arg("--data-dir").arg(&self.data_dir);
        command.arg("--listen").arg(SocketAddr::new(self.host, self.port).to_string());
        command.args(["--http-listen", "127.0.0.1:0"]).args(&self.args);
        StoreProcess(ChildProcess::start("muster-store", command))
    }

    /// Starts it and waits until it serves.
    pub fn start(&self) -> StoreProcess {
        let store = self.spawn();
        store.wait_ready();
        store
    }

    /// Runs a store that is expected to exit; returns its exit status and log.
    pub fn run_to_exit(&self) -> (ExitStatus, String) {
        let mut store = self.spawn();
        let status = store.wait();
        (status, store.log())
    }
}

/// Runs a subcommand of the store's binary.
pub fn run(args: &[&OsStr]) -> Output {
    Command::new(binary()).args(args).stdin(Stdio::null()).output().expect("muster-store can be run")
}

/// The command `muster`, without the `MUSTER_` variables of the test's environment.
pub fn command() -> Command {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    let mut command = Command::new(BINARY.get_or_init(|| build("muster")));
    without_settings(&mut command);
    command
}

/// Runs the command `muster`.
pub fn muster(args: &[&str]) -> Output {
    command().args(args).stdin(Stdio::null()).output().expect("muster can be run")
}

/// A running store.
#[derive(Debug)]
pub struct StoreProcess(ChildProcess);

impl StoreProcess {
    /// A new connection, opened at its first use.
    pub fn channel(&self) -> Channel {
        channel(&self.url())
    }

    /// The store's API for an administrator.
    pub fn api(&self) -> Api {
        Api::of(self.channel())
    }

    /// Kills it with SIGKILL and waits until it has exited.
    pub fn kill(mut self) {
        self.signal(Signal::KILL);
        self.wait();
    }

    /// Its resident memory in bytes.
    pub fn resident(&self) -> u64 {
        let path = format!("/proc/{}/status", self.pid().as_raw_nonzero());
        let status = std::fs::read_to_string(path).expect("the store runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has a size");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("the size is a number");
        kib * 1024
    }
}

impl Deref for StoreProcess {
    type Target = ChildProcess;

    fn deref(&self) -> &ChildProcess {
        &self.0
    }
}

impl DerefMut for StoreProcess {
    fn deref_mut(&mut self) -> &mut ChildProcess {
        &mut self.0
    }
}

/// All metrics of an HTTP port.
pub(crate) fn metrics(address: SocketAddr) -> String {
    // With exemplars, which the plain format does not have.
    let accept = "application/openmetrics-text";
    http::get_as(address, "/metrics", accept).expect("the HTTP port answers")
}

/// One of these metrics, by its name.
pub(crate) fn metric(text: &str, name: &str) -> f64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or_else(|| panic!("no metric {name} in:\n{text}"))
}

/// A connection that is opened at its first use. Must be called within a runtime.
pub fn channel(url: &str) -> Channel {
    let endpoint = Endpoint::from_shared(url.to_owned()).expect("a store has an address");
    // Large enough for a watcher that catches up with a thousand changes.
    endpoint.tcp_nodelay(true).initial_stream_window_size(1 << 20).connect_lazy()
}

/// Waits until something holds; panics after [`TIMEOUT`].
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A pseudo-random generator: the same seed gives the same numbers.
#[derive(Clone, Debug)]
pub struct SeededRandom(u64);

impl SeededRandom {
    /// Seeded from `MUSTER_TEST_SEED`, or else from the clock. Prints the seed, so that a failure can be repeated.
    pub fn seeded() -> SeededRandom {
        let given = std::env::var("MUSTER_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.map_or(1, |now| now.as_nanos() as u64)
        });
        println!("MUSTER_TEST_SEED={seed}");
        SeededRandom(seed)
    }

    /// The numbers of that seed.
    pub fn from_seed(seed: u64) -> SeededRandom {
        SeededRandom(seed)
    }

    /// A generator for one task: what other tasks draw does not change its numbers.
    pub fn fork(&mut self) -> SeededRandom {
        SeededRandom(self.number())
    }

    /// The next number (splitmix64).
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// True once in `times` calls on average.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

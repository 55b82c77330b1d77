//! etcd with several members, each of which can be killed, stopped for a while and started again on its files.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::child_process::within;
use crate::tools::tool;

/// Where a member runs.
#[derive(Clone, Debug)]
pub struct Place {
    /// The address that it listens at, for clients at 2379 and for members at 2380.
    pub host: String,
    /// A command that takes etcd as its last arguments and must `exec` it; empty for none.
    pub wrapper: Vec<OsString>,
    /// Its files are below.
    pub directory: PathBuf,
}

/// The members of one cluster. They are killed when this is dropped.
#[derive(Debug)]
pub struct Members {
    program: PathBuf,
    places: Vec<Place>,
    running: Vec<Option<Child>>,
    logs: PathBuf,
}

impl Members {
    /// Starts a new cluster of this etcd, one of `.ci/tools`, and does not wait for it. The logs are in a directory that this
    /// process sees.
    pub fn start(program: &str, places: Vec<Place>, logs: &Path) -> Members {
        fs::create_dir_all(logs).expect("a directory for logs");
        let running = places.iter().map(|_| None).collect();
        let mut members = Members { program: tool(program), places, running, logs: logs.to_owned() };
        for member in 0..members.places.len() {
            members.start_again(member);
        }
        members
    }

    /// The URLs for clients, separated by commas.
    pub fn urls(&self) -> String {
        let urls: Vec<String> = self.places.iter().map(client_url).collect();
        urls.join(",")
    }

    /// Starts a member that was killed.
    pub fn start_again(&mut self, member: usize) {
        let Place { host, wrapper, directory } = &self.places[member];
        let names = (0..).zip(&self.places).map(|(index, place)| format!("m{index}={}", peer_url(place)));
        let log = fs::File::options().create(true).append(true).open(self.log(member)).expect("a log file");
        let mut command = within(wrapper, &self.program);
        // etcd takes flags from variables too.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"ETCD_"))
        {
            command.env_remove(name);
        }
        command
            .args(["--name", &format!("m{member}"), "--data-dir"])
            .arg(directory)
            .args(["--listen-client-urls", &format!("http://{host}:2379")])
            .args(["--advertise-client-urls", &client_url(&self.places[member])])
            .args(["--listen-peer-urls", &peer_url(&self.places[member])])
            .args(["--initial-advertise-peer-urls", &peer_url(&self.places[member])])
            .args(["--initial-cluster", &names.collect::<Vec<_>>().join(",")])
            .args(["--logger", "zap", "--log-level", "warn"]);
        self.running[member] = Some(spawn(command, log));
    }

    /// Kills a member with SIGKILL, and waits until it has exited.
    pub fn kill(&mut self, member: usize) {
        if let Some(mut child) = self.running[member].take() {
            // It may have exited already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends a signal to a member.
    pub fn signal(&self, member: usize, signal: Signal) {
        if let Some(child) = &self.running[member] {
            kill_process(Pid::from_child(child), signal).expect("it is our child");
        }
    }

    /// The log of a member so far.
    pub fn log_of(&self, member: usize) -> String {
        fs::read_to_string(self.log(member)).unwrap_or_default()
    }

    fn log(&self, member: usize) -> PathBuf {
        self.logs.join(format!("etcd-{member}.log"))
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        (0..self.places.len()).for_each(|member| self.kill(member));
    }
}

fn client_url(place: &Place) -> String {
    format!("http://{}:2379", place.host)
}

fn peer_url(place: &Place) -> String {
    format!("http://{}:2380", place.host)
}

fn spawn(mut command: Command, log: fs::File) -> Child {
    let other = log.try_clone().expect("a second handle of it");
    command.stdin(Stdio::null()).stdout(other).stderr(log).spawn().expect("etcd can be run")
}

//! The real `muster-controller` as a child process. It is killed when it is dropped.

#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};

use rustix::process::{Pid, Signal, kill_process};

use crate::process::{Log, build, logged_address, without_settings};

/// The controller's binary, built from the sources as they are.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| build("muster-controller"))
}

/// A controller that runs.
pub struct ControllerProcess {
    child: Child,
    log: Arc<Log>,
}

impl ControllerProcess {
    /// Starts a controller of that store with further flags, such as `--node-monitor-period=1s`, and waits until it
    /// serves.
    pub fn start(store: &str, flags: &[&str]) -> ControllerProcess {
        let mut command = Command::new(binary());
        command.arg(format!("--store={store}")).args(["--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0"]);
        command.args(flags);
        without_settings(&mut command);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the controller can be run");
        let log = Arc::new(Log::default());
        let stderr = child.stderr.take().expect("stderr is piped");
        std::thread::spawn({
            let log = Arc::clone(&log);
            move || log.fill(stderr)
        });
        let controller = ControllerProcess { child, log };
        controller.wait_logged("muster-controller is ready");
        controller
    }

    /// Waits until it has logged a text.
    pub fn wait_logged(&self, text: &str) {
        if let Err(log) = self.log.wait_for(text) {
            panic!("the controller did not say {text:?}; it said:\n{log}");
        }
    }

    /// All it has logged.
    pub fn log(&self) -> String {
        self.log.lock().0.clone()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the controller is our child");
    }

    /// Where it serves gRPC.
    pub fn url(&self) -> String {
        format!("http://{}", logged_address(&self.log(), "grpc"))
    }

    /// Where it serves metrics.
    pub fn http_address(&self) -> SocketAddr {
        logged_address(&self.log(), "http")
    }
}

impl Drop for ControllerProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the controller said:\n{}", self.log());
        }
        // It may have ended; there is nobody to tell either way.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl fmt::Debug for ControllerProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControllerProcess").field("pid", &self.child.id()).finish_non_exhaustive()
    }
}

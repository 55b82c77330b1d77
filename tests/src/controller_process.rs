//! The real `muster-controller` as a child process. It is killed when it is dropped.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::child_process::ChildProcess;
use crate::store_process::build;

/// The controller's binary, built from the current sources.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| build("muster-controller"))
}

/// A running controller.
#[derive(Debug)]
pub struct ControllerProcess(ChildProcess);

impl ControllerProcess {
    /// Starts a controller of that store with more flags, such as `--node-monitor-period=1s`, and waits until it
    /// serves.
    pub fn start(store: &str, flags: &[&str]) -> ControllerProcess {
        let mut command = Command::new(binary());
        command.arg(format!("--store={store}")).args(["--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0"]);
        command.args(flags);
        let controller = ChildProcess::start("muster-controller", command);
        controller.wait_ready();
        ControllerProcess(controller)
    }
}

impl Deref for ControllerProcess {
    type Target = ChildProcess;

    fn deref(&self) -> &ChildProcess {
        &self.0
    }
}

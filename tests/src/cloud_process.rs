//! The reference cloud plug-in as a child process. It is killed when it is dropped.

use std::path::Path;
use std::process::Command;

use crate::child_process::ChildProcess;
use crate::store_process::build_from;

/// A running plug-in.
#[derive(Debug)]
pub struct CloudProcess(ChildProcess);

impl CloudProcess {
    /// Starts the plug-in on that inventory and waits until it serves.
    pub fn start(inventory: &Path) -> CloudProcess {
        let mut command = Command::new(build_from("muster-controller", "muster-cloud-inventory"));
        command.arg(format!("--inventory={}", inventory.display())).arg("--listen=127.0.0.1:0");
        let cloud = ChildProcess::start("muster-cloud-inventory", command);
        cloud.wait_ready();
        CloudProcess(cloud)
    }

    /// Where it serves gRPC.
    pub fn url(&self) -> String {
        self.0.url()
    }
}

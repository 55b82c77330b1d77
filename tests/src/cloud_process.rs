//! The real reference plug-in of a cloud as a child process. It is killed when it is dropped.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use crate::process::{Log, build_from, without_settings};

/// A plug-in that runs.
pub struct CloudProcess {
    child: Child,
    log: Arc<Log>,
}

impl CloudProcess {
    /// Starts the plug-in on that inventory and waits until it serves.
    pub fn start(inventory: &Path) -> CloudProcess {
        let mut command = Command::new(build_from("muster-controller", "muster-cloud-inventory"));
        command.arg(format!("--inventory={}", inventory.display()));
        command.arg("--listen=127.0.0.1:0");
        without_settings(&mut command);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let stderr =
            child.as_mut().ok().and_then(|child| child.stderr.take()).expect("the plug-in can be run");
        let log = Arc::new(Log::default());
        std::thread::spawn({
            let log = Arc::clone(&log);
            move || log.fill(stderr)
        });
        let cloud = CloudProcess { child: child.expect("the plug-in can be run"), log };
        if let Err(log) = cloud.log.wait_for("is ready") {
            panic!("the plug-in does not serve; it said:\n{log}");
        }
        cloud
    }

    /// Where it serves gRPC.
    pub fn url(&self) -> String {
        let log = self.log.lock().0.clone();
        let (_, rest) = log.split_once("grpc=").expect("the first line has the address");
        format!("http://{}", rest.split_whitespace().next().unwrap_or_default())
    }
}

impl Drop for CloudProcess {
    fn drop(&mut self) {
        // It may have ended; there is nobody to tell either way.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

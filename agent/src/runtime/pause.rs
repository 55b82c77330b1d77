//! The built-in `pause`: a program that does nothing until it is told to stop.
//!
//! Images that are called `pause` hold a place: a pod of one reserves what it requests. Containers here have no images,
//! so the agent's own program does it, as `muster-agent pause`.

use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

/// The agent's first argument when it runs as a pause.
pub const SUBCOMMAND: &str = "pause";
/// The program that a shim starts for it: the shim's own, wherever its file is, and whether or not the user may enter that directory.
const PROGRAM: &str = "/proc/self/exe";

/// What to run for a container: its command, or the built-in pause for an image of that name without a command. Empty if
/// there is neither.
pub fn command(image: &str, command: &[String]) -> Vec<String> {
    if command.is_empty() && is_pause(image) {
        return vec![PROGRAM.to_owned(), SUBCOMMAND.to_owned()];
    }
    command.to_vec()
}

/// Whether an image is a pause: `pause`, `registry.k8s.io/pause:3.9`, `gcr.io/google_containers/pause-amd64@sha256:...`.
fn is_pause(image: &str) -> bool {
    let name = image.split('@').next().unwrap_or_default();
    let name = name.rsplit('/').next().unwrap_or_default();
    let name = name.split(':').next().unwrap_or_default();
    name == "pause" || name.starts_with("pause-")
}

/// Waits for TERM or INT.
pub fn pause_main() -> ExitCode {
    let waited = tokio::runtime::Builder::new_current_thread().enable_io().build().and_then(|runtime| {
        runtime.block_on(async {
            let (mut term, mut interrupt) =
                (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
            tokio::select! {
                _ = term.recv() => {}
                _ = interrupt.recv() => {}
            }
            Ok(())
        })
    });
    match waited {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pause: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_called_pause_needs_no_command() {
        for (image, expected) in [
            ("pause", true),
            ("gcr.io/google_containers/pause:0.8.0", true),
            ("registry.k8s.io/pause:3.9", true),
            ("k8s.gcr.io/pause-amd64@sha256:59ee", true),
            ("localhost:5000/pause", true),
            ("pauser", false),
            ("pause/other:1", false),
            ("", false),
        ] {
            assert_eq!(!command(image, &[]).is_empty(), expected, "{image}");
        }
        assert_eq!(command("pause", &["sleep".to_owned()]), ["sleep"], "a command of its own comes first");
    }
}

//! `muster demo` without a fleet. The test of the documents runs the whole demo, because README.md has it.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::process::Command;

#[test]
fn an_unreachable_simulation_is_reported_with_a_hint() {
    // No process listens on port 1, and no test gets it as a free port.
    let address = "127.0.0.1:1";
    let output = Command::new(env!("CARGO_BIN_EXE_muster"))
        .args(["demo", "--simulation", &format!("http://{address}")])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{stderr}");
    assert!(stderr.contains(&format!("the simulation at {address} cannot be reached")), "{stderr}");
    assert!(stderr.contains("\nhint: --simulation"), "{stderr}");
}

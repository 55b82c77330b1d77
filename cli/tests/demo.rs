//! `muster demo` where it cannot be played. That it can be is shown by the test that runs the README.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::process::Command;

#[test]
fn a_simulation_that_is_not_there_is_named_with_a_way_out() {
    // Port 1 is nobody's, and no test is ever given it.
    let address = "127.0.0.1:1";
    let output = Command::new(env!("CARGO_BIN_EXE_muster"))
        .args(["demo", "--simulation", &format!("http://{address}")])
        .output()
        .unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{complaint}");
    assert!(complaint.contains(&format!("the simulation at {address} cannot be asked")), "{complaint}");
    assert!(complaint.contains("\nhint: --simulation"), "{complaint}");
}

use proptest::prelude::*;

use super::*;
use crate::convert::testing::{any_time, complaints, named, stored};

fn of(node_name: &str, serial: &str) -> pb::Revocation {
    let (node_name, serial, reason) = (node_name.into(), serial.into(), "lost".into());
    let spec = pb::RevocationSpec { node_name, serial, reason, expire_time: None };
    pb::Revocation { metadata: None, spec: Some(spec), status: None }
}

#[test]
fn a_revocation_is_of_a_node_or_of_a_serial_number_and_named_after_it() {
    assert_eq!(stored::<Revocation>(of("a", "")).meta.name, "node-a");
    assert_eq!(stored::<Revocation>(of("", "0A:1b")).meta.name, "serial-a1b");
    for (node, serial, expected) in [
        ("", "", "spec.nodeName: is required, unless serial is given"),
        ("a", "1", "spec.serial: must not be given together with nodeName"),
        (
            "",
            "x",
            "spec.serial: must be a serial number in hexadecimal, such as 3a:07:f1, of 20 bytes or fewer",
        ),
    ] {
        assert_eq!(complaints::<Revocation>(of(node, serial)), expected);
    }
    let misnamed = pb::Revocation { metadata: named("", "node-b"), ..of("a", "") };
    assert_eq!(complaints::<Revocation>(misnamed), "metadata.name: must be empty or node-a");
}

proptest! {
    #[test]
    fn a_revocation_is_the_same_after_it_was_stored(
        name in "[a-z0-9]{1,9}", serial in "[1-9a-f][0-9a-f]{0,39}", of_node in any::<bool>(),
        revoke_time in any_time(), expire_time in any_time(), revoked_by in ".{0,9}",
    ) {
        let mut revocation = if of_node { of(&name, "") } else { of("", &serial) };
        revocation.spec.as_mut().unwrap().expire_time = expire_time;
        let status = Some(pb::RevocationStatus { revoked_by, revoke_time });
        stored::<Revocation>(pb::Revocation { status, ..revocation });
    }
}

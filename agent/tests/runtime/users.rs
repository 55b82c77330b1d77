//! The users that containers run as.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use muster_agent::runtime::{ContainerId, ContainerSpec, Privilege, Runtime, RuntimeError, Security};

use crate::harness::{Harness, container, shell};

/// A runtime with ids for two pods; `None` where the test does not run as root, which alone can give them out.
fn with_two_ids() -> Option<Harness> {
    let mut harness = Harness::new();
    if harness.config().own_ids.is_none() {
        eprintln!("only root can run containers as other users");
        return None;
    }
    harness.close();
    harness.config_mut().own_ids = Some("2000000100-2000000101".parse().unwrap());
    harness.open();
    Some(harness)
}

/// The user and group of a container's first process.
fn ids(harness: &Harness, id: &ContainerId) -> (u32, u32) {
    let status = fs::read_to_string(format!("/proc/{}/status", harness.run(id).main.pid)).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        let mut each = line.split_whitespace().map(|id| id.parse::<u32>().unwrap());
        let first = each.next().unwrap();
        assert!(each.all(|other| other == first), "real, effective, saved and file ids: {status}");
        first
    };
    (field("Uid:"), field("Gid:"))
}

fn sleeper() -> ContainerSpec {
    container(&["sleep", "1000"])
}

#[tokio::test(flavor = "multi_thread")]
async fn the_containers_of_a_pod_share_a_user_that_no_other_pod_has() {
    let Some(mut harness) = with_two_ids() else { return };
    let first = sleeper();
    let beside = ContainerSpec {
        id: ContainerId { container: "beside".to_owned(), ..first.id.clone() },
        ..first.clone()
    };
    let (first, beside, second) = (harness.start(&first), harness.start(&beside), harness.start(&sleeper()));
    let of_first = ids(&harness, &first);
    assert_eq!(of_first.0, of_first.1, "user and group have one number");
    assert_eq!(ids(&harness, &beside), of_first);
    let mut both = [of_first.0, ids(&harness, &second).0];
    both.sort_unstable();
    assert_eq!(both, [2_000_000_100, 2_000_000_101]);

    let third = sleeper();
    let refused = harness.runtime().start(&third).unwrap_err();
    assert!(matches!(refused, RuntimeError::NoUser(_)), "{refused}");
    assert!(refused.to_string().contains("--pod-uid-range"), "{refused}");

    // A later agent knows which ids are taken, and by which pod.
    harness.close();
    harness.open();
    assert!(matches!(harness.runtime().start(&third), Err(RuntimeError::NoUser(_))));
    let again =
        ContainerSpec { id: ContainerId { container: "again".to_owned(), ..first.clone() }, ..sleeper() };
    let again = harness.start(&again);
    assert_eq!(ids(&harness, &again), of_first);

    harness.runtime().kill(&second).unwrap();
    harness.exit(&second).await;
    harness.runtime().remove(&second).unwrap();
    let third = harness.start(&third);
    assert_ne!(ids(&harness, &third), of_first, "the id of a pod that is gone is free");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_runs_as_the_user_it_asks_for() {
    let Some(harness) = with_two_ids() else { return };
    let security = Security { user: Some(12_345), group: Some(23_456), ..Security::default() };
    let id = harness.start(&ContainerSpec { security, ..sleeper() });
    assert_eq!(ids(&harness, &id), (12_345, 23_456));
    let security = Security { privilege: Privilege::Privileged, ..Security::default() };
    let id = harness.start(&ContainerSpec { security, ..sleeper() });
    assert_eq!(ids(&harness, &id), (0, 0), "a privileged container has the agent's user");
}

#[tokio::test(flavor = "multi_thread")]
async fn root_without_privileges_has_no_capabilities() {
    let Some(harness) = with_two_ids() else { return };
    let security = Security { user: Some(0), group: Some(0), ..Security::default() };
    let id = harness
        .start(&ContainerSpec { security, ..shell("grep Cap /proc/self/status; chown 1 /proc/self/comm") });
    assert_ne!(harness.exit(&id).await.code, 0);
    let log = harness.log(&id);
    let capabilities = log.lines().filter_map(|line| line.strip_prefix("Cap")?.split_once(':'));
    let held: Vec<(&str, &str)> =
        capabilities.filter(|(_, set)| !set.trim().trim_start_matches('0').is_empty()).collect();
    assert!(held.is_empty() && log.contains("CapEff:"), "{log}");
    assert!(log.contains("not permitted"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_can_open_its_output_again() {
    let harness = Harness::new();
    let id = harness.start(&shell("echo one > /dev/stderr; echo two >> /dev/stdout; umask"));
    assert_eq!(harness.exit(&id).await.code, 0, "{}", harness.log(&id));
    assert!(harness.log(&id).ends_with("0022\n"), "{}", harness.log(&id));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_its_user_may_not_start_is_reported_with_the_user() {
    let Some(harness) = with_two_ids() else { return };
    let closed = tempfile::tempdir().unwrap();
    fs::set_permissions(closed.path(), Permissions::from_mode(0o700)).unwrap();
    let spec = ContainerSpec { working_dir: closed.path().display().to_string(), ..container(&["true"]) };
    let refused = harness.runtime().start(&spec).unwrap_err().to_string();
    let expected = format!("the program \"true\" cannot be started in {:?} as user 20000001", closed.path());
    assert!(refused.contains(&expected) && refused.contains("Permission denied"), "{refused}");
}

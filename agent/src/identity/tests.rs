//! Directories that are new, known, locked, another node's, or damaged.

use std::os::unix::fs::PermissionsExt;

use super::*;

fn uid(last: u8) -> Uid {
    Uid::new(uuid::Uuid::from_u128(u128::from(last)))
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// The state directory `agent` in a temporary directory.
fn state(root: &tempfile::TempDir) -> StateDir {
    StateDir::open(root.path().join("agent")).unwrap()
}

#[test]
fn an_agent_keeps_its_identity() {
    let root = tempfile::tempdir().unwrap();
    let first = state(&root).identify(&name("n1"), uid(1)).unwrap();
    assert_eq!(first, Identity { name: name("n1"), node_uid: None, incarnation: uid(1) });

    let registered = Identity { node_uid: Some(uid(9)), ..first };
    state(&root).save(&registered).unwrap();
    assert_eq!(state(&root).identify(&name("n1"), uid(2)).unwrap(), registered);
    assert!(!root.path().join("agent").join(ASIDE).exists());
}

#[test]
fn two_agents_cannot_share_a_directory() {
    let root = tempfile::tempdir().unwrap();
    let held = state(&root);
    let refused = StateDir::open(held.path()).unwrap_err();
    assert!(matches!(refused, IdentityError::InUse { .. }), "{refused}");
    drop(held);
    state(&root);
}

#[test]
fn a_directory_of_another_node_is_not_taken_over() {
    let root = tempfile::tempdir().unwrap();
    let state = state(&root);
    state.identify(&name("n1"), uid(1)).unwrap();
    let refused = state.identify(&name("n2"), uid(2)).unwrap_err();
    assert!(refused.to_string().contains("belongs to node n1, not n2"), "{refused}");
    assert_eq!(state.load().unwrap().unwrap().name, name("n1"));
}

#[test]
fn a_damaged_file_is_refused_and_left_as_it_is() {
    let incarnation = uid(1).to_string();
    let whole = |format: u32, name: &str, incarnation: &str| {
        format!(r#"{{"format": {format}, "name": "{name}", "incarnation": "{incarnation}"}}"#)
    };
    for (text, reason) in [
        (String::new(), "EOF"),
        ("{".to_owned(), "EOF"),
        ("\0\0\0\0".to_owned(), "expected value"),
        (whole(1, "N_1", &incarnation), "name may hold only"),
        (whole(1, "n1", "nobody"), "incarnation must be a UUID"),
        (whole(2, "n1", &incarnation), "format 2 is not known to this version"),
        (whole(1, "n1", &incarnation).replace("name", "nmae"), "unknown field"),
    ] {
        let root = tempfile::tempdir().unwrap();
        let state = state(&root);
        let file = state.path().join(FILE);
        fs::write(&file, &text).unwrap();
        let refused = state.identify(&name("n1"), uid(2)).unwrap_err();
        assert!(matches!(refused, IdentityError::Damaged { .. }), "{text:?}: {refused}");
        assert!(refused.to_string().contains(reason), "{text:?}: {refused}");
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }
}

#[test]
fn a_file_that_a_crash_left_half_written_is_not_read() {
    let root = tempfile::tempdir().unwrap();
    let state = state(&root);
    let identity = state.identify(&name("n1"), uid(1)).unwrap();
    fs::write(state.path().join(ASIDE), "{\"form").unwrap();
    assert_eq!(state.load().unwrap(), Some(identity.clone()));
    state.save(&identity).unwrap();
    assert_eq!(state.load().unwrap(), Some(identity));
}

#[test]
fn only_the_owner_may_read_a_new_directory() {
    let root = tempfile::tempdir().unwrap();
    let state = state(&root);
    state.identify(&name("n1"), uid(1)).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(state.path()), mode(&state.path().join(FILE))), (0o700, 0o600));
}

#[test]
fn the_error_names_a_path_that_cannot_be_a_directory() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("file");
    fs::write(&file, "").unwrap();
    let refused = StateDir::open(file.join("agent")).unwrap_err().to_string();
    assert!(refused.starts_with("--state-dir: cannot use") && refused.contains("file/agent"), "{refused}");
}

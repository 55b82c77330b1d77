//! Takes away from a thread what a container must not have: the agent's user, capabilities, and system calls.
//!
//! User, capabilities, no-new-privileges and seccomp filters belong to a thread, and a process inherits those of the
//! thread that starts it. So a shim starts its program from a thread that has entered the sandbox, and keeps its own
//! privileges: it must kill what it started and record the exit.

use std::io;

use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

use super::{Privilege, User, seccomp};

/// Restricts the calling thread for good, and every process that it starts from now on.
pub fn enter(user: Option<User>, privilege: Privilege) -> io::Result<()> {
    let is_confined = privilege == Privilege::Confined;
    if is_confined {
        drop_bounding_set()?;
        clear_ambient_capability_set()?;
    }
    if let Some(user) = user {
        become_user(user)?;
    }
    if is_confined {
        // A user that is not root has lost them with root. Root itself has not.
        let none = CapabilitySet::empty();
        set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
        set_no_new_privs(true)?;
        seccomp::apply()?;
    }
    Ok(())
}

/// The groups first: only root may change them.
pub(super) fn become_user(user: User) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    let changed = set_thread_groups(&[])
        .and_then(|()| set_thread_res_gid(gid, gid, gid))
        .and_then(|()| set_thread_res_uid(uid, uid, uid));
    changed.map_err(|error| {
        let message = format!(
            "user {} and group {} cannot be taken on: {error}; the agent needs the capabilities SETUID and SETGID, and \
             --pod-uid-range must be ids that this machine or container has",
            user.uid, user.gid
        );
        io::Error::new(io::Error::from(error).kind(), message)
    })
}

/// Takes every capability out of the bounding set. Without the privilege to do so there is no privilege to gain either,
/// since no-new-privileges is set.
fn drop_bounding_set() -> io::Result<()> {
    for capability in (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
        match capability_is_in_bounding_set(capability) {
            Ok(false) => {}
            Ok(true) => match remove_capability_from_bounding_set(capability) {
                Ok(()) => {}
                Err(Errno::PERM) => return Ok(()),
                Err(error) => return Err(error.into()),
            },
            // The kernel has no more of them.
            Err(Errno::INVAL) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

//! The seccomp filter of containers: system calls that no confined container may make.
//!
//! They are those that Kubernetes' profile RuntimeDefault refuses without a capability: they act on the machine as a
//! whole, on other processes, or open parts of the kernel where an error means its takeover. Each fails with EPERM.
//! Everything else is allowed, so that programs of any age run.

use std::io;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

/// Refused whatever their arguments.
const REFUSED: &[i64] = &[
    // File systems.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_move_mount,
    libc::SYS_mount_setattr,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_fanotify_init,
    // They open files past the permissions of directories.
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    // Namespaces: in a user namespace of its own a process has all capabilities.
    libc::SYS_unshare,
    libc::SYS_setns,
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // The kernel.
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_lookup_dcookie,
    // Keys, which belong to no namespace.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // The machine.
    libc::SYS_reboot,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_nfsservctl,
];

/// Refused too, on machines that have them.
#[cfg(target_arch = "x86_64")]
const OLD: &[i64] = &[
    libc::SYS_ioperm,
    libc::SYS_iopl,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS_ustat,
    libc::SYS_sysfs,
    libc::SYS__sysctl,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[i64] = &[];

/// The bit in the numbers of the x32 calls of an x86_64 kernel. The filter sees them as calls of the same machine.
#[cfg(target_arch = "x86_64")]
const X32: i64 = 0x4000_0000;
/// ptrace, kexec_load, process_vm_readv and process_vm_writev, which have numbers of their own there.
#[cfg(target_arch = "x86_64")]
const X32_REFUSED: &[i64] = &[521, 528, 539, 540];

/// The flags of `clone` that make namespaces.
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// Sets the filter for the calling thread, and no-new-privileges with it.
pub(super) fn apply() -> io::Result<()> {
    for program in programs().map_err(io::Error::other)? {
        apply_filter(&program).map_err(io::Error::other)?;
    }
    Ok(())
}

/// The two filters, which apply together: each has one error for what it refuses.
fn programs() -> Result<[BpfProgram; 2], BackendError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let filter =
        |rules: Vec<(i64, Vec<SeccompRule>)>, error: libc::c_int| -> Result<BpfProgram, BackendError> {
            let refuse = SeccompAction::Errno(error.unsigned_abs());
            SeccompFilter::new(rules.into_iter().collect(), SeccompAction::Allow, refuse, arch)?.try_into()
        };
    // Where the flags of clone3 are cannot be read by a filter. Without it, libraries use clone.
    let unknown = with_x32(&[libc::SYS_clone3]).map(|number| (number, Vec::new())).collect();
    Ok([filter(refusals()?, libc::EPERM)?, filter(unknown, libc::ENOSYS)?])
}

fn refusals() -> Result<Vec<(i64, Vec<SeccompRule>)>, BackendError> {
    let mut rules: Vec<(i64, Vec<SeccompRule>)> =
        with_x32(&[REFUSED, OLD].concat()).map(|number| (number, Vec::new())).collect();
    #[cfg(target_arch = "x86_64")]
    rules.extend(X32_REFUSED.iter().map(|number| (number | X32, Vec::new())));
    for number in with_x32(&[libc::SYS_clone]) {
        let flags = NAMESPACES.into_iter().map(|flag| {
            let flag = u64::from(flag.unsigned_abs());
            rule(SeccompCmpOp::MaskedEq(flag), flag)
        });
        rules.push((number, flags.collect::<Result<_, _>>()?));
    }
    // Sockets to the hypervisor.
    for number in with_x32(&[libc::SYS_socket]) {
        rules.push((number, vec![rule(SeccompCmpOp::Eq, u64::from(libc::AF_VSOCK.unsigned_abs()))?]));
    }
    Ok(rules)
}

/// A rule on the first argument.
fn rule(operator: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(0, SeccompCmpArgLen::Dword, operator, value)?])
}

#[cfg(target_arch = "x86_64")]
fn with_x32(numbers: &[i64]) -> impl Iterator<Item = i64> {
    numbers.iter().flat_map(|number| [*number, number | X32])
}

#[cfg(not(target_arch = "x86_64"))]
fn with_x32(numbers: &[i64]) -> impl Iterator<Item = i64> {
    numbers.iter().copied()
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;

    use super::*;

    /// Runs a program under the filter. The thread keeps the filter, so it must be one of its own.
    fn under_the_filter(program: &'static str, args: &'static [&'static str]) -> (bool, String) {
        let ran = thread::spawn(move || {
            apply().unwrap();
            Command::new(program).args(args).output().unwrap()
        });
        let output = ran.join().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    #[test]
    fn refused_calls_fail_and_programs_run() {
        for (program, args) in [
            ("unshare", &["--user", "true"][..]),
            ("unshare", &["--net", "true"]),
            ("mount", &["-t", "tmpfs", "none", "/mnt"]),
            ("nsenter", &["--uts=/proc/self/ns/uts", "true"]),
        ] {
            let (succeeded, said) = under_the_filter(program, args);
            assert!(!succeeded, "{program} {args:?}");
            let is_refused = said.contains("not permitted") || said.contains("permission denied");
            assert!(is_refused, "{program} {args:?}: {said}");
        }
        let (succeeded, said) = under_the_filter("sh", &["-c", "ls / | sort | tail -1 && sleep 0"]);
        assert!(succeeded, "{said}");
    }
}

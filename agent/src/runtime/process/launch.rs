//! Starts a container: reserves its entry in the table, writes its order, and starts a shim on it.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use muster_proto::name::check_dns_label;
use rustix::process::{Pid, Signal, kill_process};

use super::super::logs::ContainerLog;
use super::super::processes::{self, ProcessKey};
use super::super::record::{self, Files, Order, Run};
use super::super::shim::{FAILED, SUBCOMMAND};
use super::super::{
    ContainerId, ContainerSpec, Limits, Privilege, RuntimeError, Security, User, cgroup, logs,
};
use super::{Entry, Inner, Stage};

impl Inner {
    /// Reserves an entry in the table, so that no other caller starts the same attempt. Returns the id that belongs to
    /// the pod alone: the one it has, or one that no pod has.
    pub(super) fn reserve(&self, spec: &ContainerSpec) -> Result<Option<u32>, RuntimeError> {
        let id = &spec.id;
        let mut table = self.table();
        if table.contains_key(id) {
            return Err(RuntimeError::Exists(id.clone()));
        }
        let first = ContainerId { attempt: 0, ..id.clone() };
        let last = ContainerId { attempt: u32::MAX, ..id.clone() };
        let mut others = table.range(first..=last);
        if let Some((other, _)) = others.find(|(_, entry)| !matches!(entry.stage, Stage::Exited(_))) {
            return Err(RuntimeError::Busy { id: id.clone(), running: other.attempt });
        }
        let own_id = match self.own_ids {
            None => None,
            Some(ids) => {
                let of_pod = table.iter().filter(|(other, _)| other.pod == id.pod);
                let kept = of_pod.filter_map(|(_, entry)| entry.own_id).next();
                let is_taken = |id| table.values().any(|entry| entry.own_id == Some(id));
                let own_id = kept.or_else(|| ids.pick(id.pod, is_taken));
                Some(own_id.ok_or_else(|| RuntimeError::NoUser(id.clone()))?)
            }
        };
        let entry = Entry {
            pod_namespace: spec.pod_namespace.clone(),
            pod_name: spec.pod_name.clone(),
            cpus: spec.limits.cpus.clone(),
            cgroup: self.tree.as_ref().map(|tree| tree.paths(id)),
            own_id,
            own_grace: spec.own_grace_seconds.map(Duration::from_secs),
            is_this_boot: true,
            starter: None,
            hook: None,
            log: Arc::new(ContainerLog::new(self.files(id))),
            stage: Stage::Starting,
        };
        table.insert(id.clone(), entry);
        Ok(own_id)
    }

    /// Writes the order, starts a shim on it and waits until the container runs.
    pub(super) fn launch(
        &self,
        spec: &ContainerSpec,
        cpus: &[u32],
        own_id: Option<u32>,
    ) -> Result<(Run, Child), RuntimeError> {
        let id = &spec.id;
        let refused = |reason: String| RuntimeError::NotStarted { id: id.clone(), reason };
        let files = self.files(id);
        files.make_folder().map_err(RuntimeError::machine(format!("make the folder of {id}")))?;
        let cgroup = match &self.tree {
            None => None,
            Some(tree) => Some(
                tree.create(id, &Limits { cpus: cpus.to_vec(), ..spec.limits.clone() }, &spec.pod_limits)
                    .map_err(|error| refused(format!("its limits cannot be set: {error}")))?,
            ),
        };
        let user = user_of(spec.security, own_id);
        let volumes = self.volumes.prepare(id.pod, &spec.mounts).map_err(refused)?;
        let order =
            Order { spec: spec.clone(), cgroup, affinity: self.affinity(cpus), own_id, user, volumes };
        record::write(&files.order(), &order)
            .map_err(RuntimeError::machine(format!("write the order of {id}")))?;

        let doing = || RuntimeError::machine(format!("start the shim of {id}"));
        let complaints = logs::open(&files.shim_log()).map_err(doing())?;
        let mut command = self.shim_for(&files);
        let mut shim = command.stdout(Stdio::piped()).stderr(complaints).spawn().map_err(doing())?;
        // From here on the shim can be killed if its start hangs.
        if let (Some(entry), Ok(starter)) =
            (self.table().get_mut(id), ProcessKey::of(shim.id().cast_signed()))
        {
            entry.starter = Some(starter);
        }
        let word = match shim.stdout.take() {
            Some(out) => first_line(out).unwrap_or_default(),
            None => String::new(),
        };
        let failure = word.strip_prefix(FAILED);
        // A shim that died without a message may still have started the container.
        if failure.is_none()
            && let Ok(Some(run)) = record::read(&files.run())
        {
            return Ok((run, shim));
        }
        // A failure is the shim's last message: what it started, if anything, has exited by then.
        shim.wait().map_err(doing())?;
        if let Some(paths) = &order.cgroup {
            let _ = cgroup::kill(&paths.container);
        }
        Err(refused(failure.unwrap_or("its shim died").to_owned()))
    }

    /// Kills a start that hangs: its caller gets the error that the shim died.
    pub(super) fn give_up(&self, id: &ContainerId, starter: ProcessKey) -> Result<(), RuntimeError> {
        if let Ok(Some(paths)) = self.entry(id).map(|entry| entry.cgroup) {
            let _ = cgroup::kill(&paths.container);
        }
        let doing = || RuntimeError::machine(format!("end the start of {id}"));
        let below = processes::descendants(&[starter.pid].into()).map_err(doing())?;
        for pid in below.into_iter().filter_map(Pid::from_raw).filter(|_| starter.is_alive()) {
            let _ = kill_process(pid, Signal::KILL);
        }
        starter.signal_group(Signal::KILL).map_err(doing())?;
        Ok(())
    }

    /// CPUs to pin a container to, where cgroups cannot restrict them.
    fn affinity(&self, cpus: &[u32]) -> Vec<u32> {
        if self.controls_cpus() { Vec::new() } else { cpus.to_vec() }
    }

    /// A shim on that order, without the agent's environment, which may hold secrets.
    pub(super) fn shim_for(&self, files: &Files) -> Command {
        let mut command = Command::new(&self.shim);
        command.arg0("muster-agent").arg(SUBCOMMAND).arg(files.order());
        command.env_clear().current_dir("/").stdin(Stdio::null());
        command
    }
}

/// The user to run as; `None` is the agent's. Without ids to give out, the agent cannot become another user.
fn user_of(security: Security, own_id: Option<u32>) -> Option<User> {
    let own_id = own_id?;
    let Security { user, group, privilege } = security;
    let default = match privilege {
        Privilege::Privileged if user.is_none() && group.is_none() => return None,
        Privilege::Privileged => 0,
        Privilege::Confined | Privilege::Escalating => own_id,
    };
    Some(User { uid: user.unwrap_or(default), gid: group.unwrap_or(default) })
}

/// The first line that a shim prints; empty if it prints none.
fn first_line(out: impl io::Read) -> io::Result<String> {
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}

pub(super) fn check(spec: &ContainerSpec) -> Result<(), RuntimeError> {
    let container = &spec.id.container;
    let malformed = |reason: String| Err(RuntimeError::Malformed { container: container.clone(), reason });
    if let Err(error) = check_dns_label(container) {
        return malformed(format!("its name {error}"));
    }
    if spec.command.first().is_none_or(String::is_empty) {
        return Err(RuntimeError::NoCommand(container.clone()));
    }
    let bad = spec.env.iter().find(|(name, _)| name.is_empty() || name.contains('='));
    if let Some((name, _)) = bad {
        return malformed(format!("{name:?} cannot name a variable of its environment"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_runs_as_its_pods_own_user_unless_it_asks_for_another() {
        use Privilege::{Confined, Escalating, Privileged};
        for (user, group, privilege, own_id, expected) in [
            (None, None, Confined, Some(2000), Some((2000, 2000))),
            (None, None, Escalating, Some(2000), Some((2000, 2000))),
            (Some(7), None, Confined, Some(2000), Some((7, 2000))),
            (None, Some(8), Confined, Some(2000), Some((2000, 8))),
            (Some(0), None, Confined, Some(2000), Some((0, 2000))),
            (None, None, Privileged, Some(2000), None),
            (Some(7), None, Privileged, Some(2000), Some((7, 0))),
            (None, None, Confined, None, None),
            (Some(7), None, Confined, None, None),
        ] {
            let security = Security { user, group, privilege };
            let found = user_of(security, own_id).map(|user| (user.uid, user.gid));
            assert_eq!(found, expected, "{security:?} of {own_id:?}");
        }
    }
}

//! Starts a container: reserves its entry in the table, writes its order, and starts a shim on it.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use muster_proto::name::check_dns_label;
use rustix::process::{Pid, Signal, kill_process};

use super::super::processes::{self, ProcessKey};
use super::super::record::{self, Files, Order, Run};
use super::super::shim::{FAILED, SUBCOMMAND};
use super::super::{ContainerId, ContainerSpec, Limits, RuntimeError, cgroup, logs};
use super::{Entry, Inner, Stage};

impl Inner {
    /// Reserves an entry in the table, so that no other caller starts the same attempt.
    pub(super) fn reserve(&self, spec: &ContainerSpec) -> Result<(), RuntimeError> {
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
        let entry = Entry {
            pod_namespace: spec.pod_namespace.clone(),
            pod_name: spec.pod_name.clone(),
            cpus: spec.limits.cpus.clone(),
            cgroup: self.tree.as_ref().map(|tree| tree.paths(id)),
            own_grace: spec.own_grace_seconds.map(Duration::from_secs),
            is_this_boot: true,
            starter: None,
            hook: None,
            stage: Stage::Starting,
        };
        table.insert(id.clone(), entry);
        Ok(())
    }

    /// Writes the order, starts a shim on it and waits until the container runs.
    pub(super) fn launch(&self, spec: &ContainerSpec, cpus: &[u32]) -> Result<(Run, Child), RuntimeError> {
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
        let order = Order { spec: spec.clone(), cgroup, affinity: self.affinity(cpus) };
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

//! Performs actions on this machine; `store_calls` makes those that are calls of the store.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_agent_core::pod_lifecycle::{Action, Outcome};
use muster_agent_core::pod_security::Asked;
use muster_agent_core::resources::swap::{self, SwapPolicy};
use muster_agent_core::resources::topology::cpu_assignments::CpuAssignments;
use muster_agent_core::resources::{oom_score, priority};
use muster_proto::name::Uid;
use muster_proto::pb;
use muster_proto::pb::volume::Source;
use muster_proto::pod::{Container, Pod, requests};
use muster_proto::quantity::{Quantity, Resources};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use crate::runtime::process::ProcessRuntime;
use crate::runtime::volumes::{Mount, VolumeSource};
use crate::runtime::{
    ContainerId, ContainerSpec, DiskUsage, Limits, PodLimits, Privilege, Runtime, RuntimeError, Security,
    Signal, Usage, Workload, pause,
};

/// A stop hook that has ended.
pub type HookEnded = (Uid, String);

/// What actions are performed with.
pub struct Executor {
    pub runtime: Arc<ProcessRuntime>,
    pub swap: SwapPolicy,
    /// Processes and threads that each pod may have; `None` means no limit.
    pub pod_max_pids: Option<u64>,
    pub cpu_assignments: Arc<Mutex<CpuAssignments>>,
    pub hooks: mpsc::UnboundedSender<HookEnded>,
}

impl Executor {
    /// Performs an action that is not a call of the store.
    pub async fn perform(&self, action: &Action) -> Outcome {
        match action {
            Action::ReadNode { .. }
            | Action::Report { .. }
            | Action::CreateMirror { .. }
            | Action::DeleteMirror { .. }
            | Action::Delete { .. } => Outcome::Failed { message: "this is a call of the store".to_owned() },
            Action::Start { pod, container, attempt } => self.start(pod, container, *attempt).await,
            Action::RunPreStop { pod, container, within } => self.run_hook(pod, container, *within),
            Action::Term { uid, container } => {
                self.at_newest(*uid, container, |runtime, id| runtime.signal(id, Signal::Term)).await
            }
            Action::Kill { uid, container } => self.at_newest(*uid, container, ProcessRuntime::kill).await,
            Action::Release { uid, keeps_files } => self.release(*uid, *keeps_files).await,
        }
    }

    async fn start(&self, pod: &Arc<Pod>, name: &str, attempt: u32) -> Outcome {
        let container = pod.spec.all_containers().find(|container| container.name == name);
        let (Some(container), Some(uid)) = (container, pod.meta.uid) else { return Outcome::Gone };
        let Some(namespace) = pod.meta.namespace.clone() else { return Outcome::Gone };
        let env = match environment(container) {
            Ok(env) => env,
            Err(message) => return Outcome::Failed { message },
        };
        let assigned = lock(&self.cpu_assignments).assign(pod, name);
        let cpus = match assigned {
            Ok(cpus) => cpus,
            Err(rejection) => return Outcome::Refused(rejection),
        };
        let mounts = match mounts(pod, container) {
            Ok(mounts) => mounts,
            Err(message) => return Outcome::Failed { message },
        };
        let spec = ContainerSpec {
            mounts,
            id: ContainerId { pod: uid, container: name.to_owned(), attempt },
            pod_namespace: namespace,
            pod_name: pod.meta.name.clone(),
            command: pause::command(&container.image, &container.command),
            args: container.args.clone(),
            env,
            working_dir: container.working_dir.clone(),
            own_grace_seconds: Some(priority::own_grace(pod).as_secs()),
            limits: Limits { cpus, ..limits(pod, container, &self.swap) },
            oom_score_adj: oom_score::score_adj(pod, container, self.swap.memory_total),
            pod_limits: PodLimits { pids: self.pod_max_pids, ..pod_limits(pod) },
            security: security(Asked::by(pod, container)),
        };
        let (runtime, cpu_assignments) = (Arc::clone(&self.runtime), Arc::clone(&self.cpu_assignments));
        // Containers that share are moved off the container's own CPUs before it starts.
        let started = spawn_blocking(move || {
            share_rest(&*runtime, &cpu_assignments);
            let started = runtime.start(&spec)?;
            forget_attempts_before(&runtime, &spec.id);
            Ok::<_, RuntimeError>(started)
        });
        match started.await {
            Ok(Ok(started)) => Outcome::Started { pid: started.pid.unsigned_abs(), at: started.started_at },
            Ok(Err(error)) => Outcome::Failed { message: error.to_string() },
            Err(error) => Outcome::Failed { message: error.to_string() },
        }
    }

    fn run_hook(&self, pod: &Arc<Pod>, name: &str, within: Duration) -> Outcome {
        let container = pod.spec.all_containers().find(|container| container.name == name);
        let hook = container.and_then(|container| container.lifecycle.as_ref()?.pre_stop.as_ref());
        let (Some(hook), Some(uid)) = (hook, pod.meta.uid) else { return Outcome::Gone };
        let (command, name, runtime, ended) =
            (hook.command.clone(), name.to_owned(), Arc::clone(&self.runtime), self.hooks.clone());
        spawn_blocking(move || {
            if let Some(id) = newest(&runtime, uid, &name)
                && let Err(error) = runtime.run_hook(&id, &command, within)
            {
                tracing::warn!(container = %id, %error, "a stop hook failed");
            }
            // The receiver is gone only when the agent stops.
            let _ = ended.send((uid, name));
        });
        Outcome::Done
    }

    async fn at_newest(
        &self,
        pod: Uid,
        container: &str,
        call: impl FnOnce(&ProcessRuntime, &ContainerId) -> Result<(), RuntimeError> + Send + 'static,
    ) -> Outcome {
        let (runtime, container) = (Arc::clone(&self.runtime), container.to_owned());
        let done = spawn_blocking(move || match newest(&runtime, pod, &container) {
            Some(id) => call(&runtime, &id).map_err(|error| error.to_string()),
            None => Ok(()),
        });
        match done.await {
            Ok(Ok(())) => Outcome::Done,
            Ok(Err(message)) => Outcome::Failed { message },
            Err(error) => Outcome::Failed { message: error.to_string() },
        }
    }

    async fn release(&self, pod: Uid, keeps_files: bool) -> Outcome {
        let runtime = Arc::clone(&self.runtime);
        let released = spawn_blocking(move || {
            let is_its = |workload: &Workload| workload.id.pod == pod && !keeps_files;
            let of_pod = runtime.list().into_iter().filter(is_its);
            let removed =
                of_pod.map(|workload| runtime.remove(&workload.id)).collect::<Result<Vec<()>, _>>()?;
            // No process of the pod is left that could use them.
            runtime.remove_volumes(pod)?;
            Ok::<_, RuntimeError>(removed)
        });
        match released.await {
            Ok(Ok(_)) => {
                lock(&self.cpu_assignments).release(pod);
                let (runtime, cpu_assignments) =
                    (Arc::clone(&self.runtime), Arc::clone(&self.cpu_assignments));
                match spawn_blocking(move || share_rest(&*runtime, &cpu_assignments)).await {
                    Ok(()) => Outcome::Done,
                    Err(error) => Outcome::Failed { message: error.to_string() },
                }
            }
            Ok(Err(error)) => Outcome::Failed { message: error.to_string() },
            Err(error) => Outcome::Failed { message: error.to_string() },
        }
    }
}

impl Executor {
    /// What each running container uses; empty if that cannot be read.
    pub async fn usages(&self) -> BTreeMap<ContainerId, Usage> {
        let runtime = Arc::clone(&self.runtime);
        spawn_blocking(move || runtime.usages()).await.unwrap_or_default()
    }

    /// What each pod has on the disk; empty if that cannot be read.
    pub async fn disk_usages(&self) -> BTreeMap<Uid, DiskUsage> {
        let runtime = Arc::clone(&self.runtime);
        spawn_blocking(move || runtime.disk_usages()).await.unwrap_or_default()
    }

    /// Removes the files of earlier attempts, and all files of stopped pods; returns of how many containers.
    pub async fn sweep(&self, over: BTreeSet<Uid>) -> usize {
        let runtime = Arc::clone(&self.runtime);
        let swept = spawn_blocking(move || {
            let dead = spare(&runtime.list(), &over);
            dead.iter().filter(|id| runtime.remove(id).is_ok()).count()
        });
        swept.await.unwrap_or_default()
    }
}

fn lock(cpu_assignments: &Mutex<CpuAssignments>) -> MutexGuard<'_, CpuAssignments> {
    cpu_assignments.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Moves containers that share to the CPUs that are not assigned. Under the lock, since starts run concurrently: the
/// last caller to move them must have the newest assignments.
fn share_rest(runtime: &dyn Runtime, cpu_assignments: &Mutex<CpuAssignments>) {
    share(runtime, &lock(cpu_assignments));
}

/// Moves containers that share to the CPUs that are not assigned. A container that cannot be moved keeps running.
pub fn share(runtime: &dyn Runtime, cpu_assignments: &CpuAssignments) {
    if cpu_assignments.is_enabled()
        && let Err(error) = runtime.share(&cpu_assignments.shared())
    {
        tracing::warn!(%error, "containers that share still run on assigned CPUs");
    }
}

/// Removes all attempts before this one except the newest of them: its exit is in the pod's status, and its log is the
/// one that people look for.
fn forget_attempts_before(runtime: &ProcessRuntime, id: &ContainerId) {
    for earlier in outlived(&runtime.list(), id) {
        if let Err(error) = runtime.remove(&earlier) {
            tracing::debug!(container = %earlier, %error, "its files stay for now");
        }
    }
}

fn outlived(listed: &[Workload], id: &ContainerId) -> Vec<ContainerId> {
    let is_earlier = |other: &&ContainerId| {
        other.pod == id.pod && other.container == id.container && other.attempt < id.attempt
    };
    let ended = listed.iter().filter(|workload| workload.is_over()).map(|workload| &workload.id);
    let mut earlier: Vec<ContainerId> = ended.filter(is_earlier).cloned().collect();
    earlier.sort();
    earlier.pop();
    earlier
}

/// Containers whose files are not needed: exited attempts that were followed by another, and those of stopped pods. The
/// last attempt of each container of other pods stays: the pod's status and restart count are derived from it.
fn spare(listed: &[Workload], over: &BTreeSet<Uid>) -> Vec<ContainerId> {
    let is_followed = |id: &ContainerId| {
        let later = |other: &ContainerId| {
            other.pod == id.pod && other.container == id.container && other.attempt > id.attempt
        };
        listed.iter().any(|workload| later(&workload.id))
    };
    let ended = listed.iter().filter(|workload| workload.is_over()).map(|workload| &workload.id);
    ended.filter(|id| over.contains(&id.pod) || is_followed(id)).cloned().collect()
}

/// The newest attempt of a container.
fn newest(runtime: &ProcessRuntime, pod: Uid, container: &str) -> Option<ContainerId> {
    let attempts = runtime.list().into_iter().map(|workload| workload.id);
    attempts.filter(|id| id.pod == pod && id.container == container).max_by_key(|id| id.attempt)
}

/// The environment of a container. A variable whose value comes from a secret or config map is an error: empty, it
/// would be taken for a value.
fn environment(container: &Container) -> Result<Vec<(String, String)>, String> {
    let variables = container.env.iter().map(|variable| {
        let kept_in = match &variable.value_from {
            None => return Ok((variable.name.clone(), variable.value.clone())),
            Some(from) => match (&from.secret_key_ref, &from.config_map_key_ref) {
                (Some(key), _) => format!("of the secret {}", key.name),
                (None, Some(key)) => format!("of the config map {}", key.name),
                (None, None) => "of something unknown".to_owned(),
            },
        };
        Err(format!(
            "container {}: the variable {} takes the value {kept_in}, and this runtime knows neither secrets nor config \
             maps: give it a value",
            container.name, variable.name
        ))
    });
    variables.collect()
}

/// What the container sees of the pod's volumes.
fn mounts(pod: &Pod, container: &Container) -> Result<Vec<Mount>, String> {
    let mount = |mount: &pb::VolumeMount| {
        let volume = pod.spec.volumes.iter().find(|volume| volume.name == mount.name);
        let source = match volume.and_then(|volume| volume.source.as_ref()) {
            Some(Source::EmptyDir(pb::EmptyDirVolume { size_limit, medium })) if medium == "Memory" => {
                let size: Option<Quantity> = size_limit.parse().ok();
                VolumeSource::Memory { bytes: size.and_then(|size| u64::try_from(size.value()).ok()) }
            }
            Some(Source::EmptyDir(_)) => VolumeSource::Disk,
            Some(Source::HostPath(pb::HostPathVolume { path, r#type })) => {
                VolumeSource::Host { path: path.into(), kind: r#type.clone() }
            }
            _ => {
                let name = &mount.name;
                return Err(format!(
                    "volume {name} is neither an emptyDir nor a hostPath, and nothing else works here"
                ));
            }
        };
        Ok(Mount {
            volume: mount.name.clone(),
            source,
            target: PathBuf::from(&mount.mount_path),
            read_only: mount.read_only,
        })
    };
    container.volume_mounts.iter().map(mount).collect()
}

fn security(asked: Asked) -> Security {
    let privilege = match asked {
        Asked { privileged: true, .. } => Privilege::Privileged,
        Asked { escalation: true, .. } => Privilege::Escalating,
        _ => Privilege::Confined,
    };
    Security { user: asked.user, group: asked.group, privilege }
}

fn pod_limits(pod: &Pod) -> PodLimits {
    let asked = requests::amount(&requests::of(&pod.spec), "cpu");
    PodLimits { cpu_request_millis: u64::try_from(asked.milli()).unwrap_or(0), pids: None }
}

fn limits(pod: &Pod, container: &Container, policy: &SwapPolicy) -> Limits {
    let milli = |from: &Resources, name: &str| from.get(name).and_then(|q| u64::try_from(q.milli()).ok());
    let bytes = |from: &Resources, name: &str| from.get(name).and_then(|q| u64::try_from(q.value()).ok());
    let resources = &container.resources;
    Limits {
        cpu_request_millis: milli(&resources.requests, "cpu"),
        cpu_millis: milli(&resources.limits, "cpu"),
        memory_bytes: bytes(&resources.limits, "memory"),
        swap_bytes: policy.is_controlled.then(|| swap::limit(pod, container, policy)),
        cpus: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::runtime::{Exit, ExitReason, Started, State};
    use muster_agent_core::testing::{container, uid};

    fn workload(container: &str, attempt: u32, is_over: bool) -> Workload {
        let at = Timestamp::UNIX_EPOCH;
        let exit = Exit {
            code: 1,
            signal: None,
            reason: ExitReason::Error,
            message: String::new(),
            started_at: at,
            finished_at: at,
        };
        Workload {
            id: ContainerId { pod: uid("a"), container: container.to_owned(), attempt },
            pod_namespace: "default".parse().unwrap(),
            pod_name: "a".parse().unwrap(),
            cpus: Vec::new(),
            own_grace: None,
            is_this_boot: true,
            state: match is_over {
                true => State::Exited(exit),
                false => State::Running(Started { pid: 1, started_at: at }),
            },
        }
    }

    #[test]
    fn only_files_that_are_not_needed_are_removed() {
        let listed = [
            workload("x", 0, true),
            workload("x", 1, true),
            workload("x", 2, false),
            workload("y", 0, true),
            workload("z", 0, false),
        ];
        let swept = |over: &[Uid]| -> Vec<(String, u32)> {
            let spare = spare(&listed, &over.iter().copied().collect());
            spare.into_iter().map(|id| (id.container, id.attempt)).collect()
        };
        let text = str::to_owned;
        assert_eq!(swept(&[]), [(text("x"), 0), (text("x"), 1)]);
        let all = [(text("x"), 0), (text("x"), 1), (text("y"), 0)];
        assert_eq!(swept(&[uid("a")]), all, "no file of a stopped pod is kept");
    }
    #[test]
    fn a_variable_from_a_secret_or_config_map_is_an_error() {
        let key = Some(pb::KeySelector { name: "token".to_owned(), key: "k".to_owned() });
        let plain = pb::EnvVar { name: "A".to_owned(), value: "1".to_owned(), value_from: None };
        let mut container = container("main");
        container.env = vec![plain.clone()];
        assert_eq!(environment(&container), Ok(vec![("A".to_owned(), "1".to_owned())]));
        for (from, expected) in [
            (pb::EnvVarSource { secret_key_ref: key.clone(), config_map_key_ref: None }, "secret token"),
            (pb::EnvVarSource { secret_key_ref: None, config_map_key_ref: key }, "config map token"),
            (pb::EnvVarSource::default(), "unknown"),
        ] {
            let variable = pb::EnvVar { name: "B".to_owned(), value_from: Some(from), ..Default::default() };
            container.env = vec![plain.clone(), variable];
            let refused = environment(&container).unwrap_err();
            assert!(refused.contains("variable B") && refused.contains(expected), "{refused}");
        }
    }

    #[test]
    fn the_newest_of_the_earlier_attempts_is_kept() {
        let listed = [
            workload("x", 0, true),
            workload("x", 1, true),
            workload("x", 3, true),
            workload("x", 4, false),
            workload("y", 0, true),
        ];
        let earlier = |attempt| {
            let id = ContainerId { attempt, ..listed[0].id.clone() };
            outlived(&listed, &id).into_iter().map(|id| id.attempt).collect::<Vec<_>>()
        };
        assert_eq!((earlier(4), earlier(1), earlier(0)), (vec![0, 1], vec![], vec![]));
    }
}

//! Containers and their volume mounts.

use std::collections::BTreeSet;

use super::security::check_security;
use super::{address_in, resources_in, resources_out, time_in, unless_default};
use crate::invalid::{Check, Path};
use crate::name::check_dns_label;
use crate::pb;
use crate::pb::container_state::State;
use crate::pb::volume::Source;
use crate::pod::{Container, ResourceRequirements};
use crate::quantity::Quantity;

/// Names that must be unique in the whole pod.
#[derive(Default)]
pub(super) struct Seen {
    containers: BTreeSet<String>,
    ports: BTreeSet<String>,
    pub(super) volumes: BTreeSet<String>,
}

pub(super) fn container_in(
    check: &mut Check,
    path: &Path<'_>,
    container: pb::Container,
    is_init: bool,
    seen: &mut Seen,
) -> Container {
    let pb::Container {
        name,
        image,
        command,
        args,
        working_dir,
        env,
        resources,
        ports,
        restart_policy,
        lifecycle,
        volume_mounts,
        security_context,
    } = container;
    check.field(&path.key("name"), check_dns_label(&name));
    let is_new = seen.containers.insert(name.clone());
    check.ensure(&path.key("name"), is_new, "must not be the name of an earlier container");
    for (i, pb::EnvVar { name, value: _, value_from: _ }) in env.iter().enumerate() {
        check.ensure(&path.key("env").index(i).key("name"), !name.is_empty(), "is required");
    }
    for (i, port) in ports.iter().enumerate() {
        check_port(check, &path.key("ports").index(i), port, seen);
    }
    match (restart_policy.as_str(), is_init) {
        ("", _) | ("Always", true) => {}
        (_, true) => check.fail(&path.key("restartPolicy"), "must be Always or empty"),
        (_, false) => check.fail(&path.key("restartPolicy"), "must be empty: only an init container has one"),
    }
    for (i, mount) in volume_mounts.iter().enumerate() {
        let pb::VolumeMount { name, mount_path, read_only: _ } = mount;
        let path = path.key("volumeMounts");
        let path = path.index(i);
        check.ensure(&path.key("name"), seen.volumes.contains(name), "must be one of the pod's volumes");
        check.ensure(&path.key("mountPath"), !mount_path.is_empty(), "is required");
        let is_place = mount_path.is_empty()
            || (mount_path.starts_with('/')
                && !mount_path.trim_matches('/').is_empty()
                && mount_path.split('/').all(|step| step != ".."));
        check.ensure(&path.key("mountPath"), is_place, "must be an absolute path other than /, without ..");
    }
    if let Some(security) = &security_context {
        check_security(check, &path.key("securityContext"), security);
    }
    Container {
        name,
        image,
        command,
        args,
        working_dir,
        env,
        resources: requirements_in(check, &path.key("resources"), resources.unwrap_or_default()),
        ports,
        sidecar: restart_policy == "Always",
        lifecycle,
        volume_mounts,
        security_context,
    }
}

fn requirements_in(
    check: &mut Check,
    path: &Path<'_>,
    requirements: pb::ResourceRequirements,
) -> ResourceRequirements {
    let pb::ResourceRequirements { requests, limits } = requirements;
    let requests = resources_in(check, &path.key("requests"), requests);
    let limits = resources_in(check, &path.key("limits"), limits);
    for (name, request) in &requests {
        let fits = limits.get(name).is_none_or(|limit| request <= limit);
        check.ensure(&path.key("requests").entry(name), fits, "must not exceed the limit");
    }
    ResourceRequirements { requests, limits }
}

fn check_port(check: &mut Check, path: &Path<'_>, port: &pb::ContainerPort, seen: &mut Seen) {
    let pb::ContainerPort { name, container_port, host_port, host_ip, protocol } = port;
    let is_new = name.is_empty() || seen.ports.insert(name.clone());
    check.ensure(&path.key("name"), is_new, "must not be the name of an earlier port");
    check.ensure(&path.key("containerPort"), (1..=65535).contains(container_port), "must be from 1 to 65535");
    check.ensure(&path.key("hostPort"), (0..=65535).contains(host_port), "must be from 0 to 65535");
    if !host_ip.is_empty() {
        address_in(check, &path.key("hostIp"), host_ip);
    }
    let is_known = matches!(protocol.as_str(), "" | "TCP" | "UDP" | "SCTP");
    check.ensure(&path.key("protocol"), is_known, "must be TCP, UDP or SCTP");
}

/// What a path on the node can be required to be.
const HOST_PATH_TYPES: [&str; 7] =
    ["DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"];

pub(super) fn check_volume(check: &mut Check, path: &Path<'_>, volume: &pb::Volume, seen: &mut Seen) {
    let pb::Volume { name, source } = volume;
    check.field(&path.key("name"), check_dns_label(name));
    let is_new = seen.volumes.insert(name.clone());
    check.ensure(&path.key("name"), is_new, "must not be the name of an earlier volume");
    match source {
        None => check.fail(path, "must say what it is, such as emptyDir"),
        Some(Source::EmptyDir(pb::EmptyDirVolume { size_limit, medium })) => {
            let path = path.key("emptyDir");
            let is_known = matches!(medium.as_str(), "" | "Memory");
            check.ensure(&path.key("medium"), is_known, "must be Memory, or empty for the disk");
            if !size_limit.is_empty()
                && let Some(size) = check.field(&path.key("sizeLimit"), size_limit.parse::<Quantity>())
            {
                check.ensure(&path.key("sizeLimit"), !size.is_negative(), "must not be negative");
            }
        }
        Some(Source::HostPath(pb::HostPathVolume { path: given, r#type })) => {
            check.ensure(&path.key("hostPath.path"), !given.is_empty(), "is required");
            let is_known = r#type.is_empty() || HOST_PATH_TYPES.contains(&r#type.as_str());
            check.ensure(
                &path.key("hostPath.type"),
                is_known,
                format_args!("must be {}, or empty", HOST_PATH_TYPES.join(", ")),
            );
        }
        Some(Source::Secret(object)) => check_object(check, &path.key("secret"), object),
        Some(Source::ConfigMap(object)) => check_object(check, &path.key("configMap"), object),
        Some(Source::PersistentVolumeClaim(object)) => {
            check_object(check, &path.key("persistentVolumeClaim"), object);
        }
    }
}

fn check_object(check: &mut Check, path: &Path<'_>, object: &pb::ObjectVolume) {
    let pb::ObjectVolume { name } = object;
    check.ensure(&path.key("name"), !name.is_empty(), "is required");
}

/// Only timestamps of a container's status can be invalid: the runtime reports the rest in its own words.
pub(super) fn check_container_status(check: &mut Check, path: &Path<'_>, status: &pb::ContainerStatus) {
    let pb::ContainerStatus {
        name: _,
        ready: _,
        restart_count: _,
        image: _,
        container_id: _,
        state,
        last_state,
    } = status;
    for (field, state) in [("state", state), ("lastState", last_state)] {
        let path = path.key(field);
        match state.as_ref().and_then(|state| state.state.as_ref()) {
            Some(State::Running(pb::ContainerStateRunning { started_at })) => {
                time_in(check, &path.key("running.startedAt"), *started_at);
            }
            Some(State::Terminated(ended)) => {
                time_in(check, &path.key("terminated.startedAt"), ended.started_at);
                time_in(check, &path.key("terminated.finishedAt"), ended.finished_at);
            }
            Some(State::Waiting(_)) | None => {}
        }
    }
}

impl From<Container> for pb::Container {
    fn from(container: Container) -> Self {
        let Container {
            name,
            image,
            command,
            args,
            working_dir,
            env,
            resources,
            ports,
            sidecar,
            lifecycle,
            volume_mounts,
            security_context,
        } = container;
        Self {
            name,
            image,
            command,
            args,
            working_dir,
            env,
            resources: unless_default(resources.into()),
            ports,
            restart_policy: if sidecar { "Always".to_owned() } else { String::new() },
            lifecycle,
            volume_mounts,
            security_context,
        }
    }
}

impl From<ResourceRequirements> for pb::ResourceRequirements {
    fn from(requirements: ResourceRequirements) -> Self {
        let ResourceRequirements { requests, limits } = requirements;
        Self { requests: resources_out(requests), limits: resources_out(limits) }
    }
}

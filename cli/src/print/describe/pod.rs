//! The page of a pod.

use jiff::Timestamp;
use muster_proto::event::Event;
use muster_proto::pb;
use muster_proto::pb::container_state::State;
use muster_proto::pb::volume::Source;
use muster_proto::pod::{Container, Pod};
use muster_proto::quantity::Resources;
use muster_proto::taint::{Toleration, TolerationOperator};

use super::fields::Fields;
use super::{ConditionRow, conditions, events, time};
use crate::print::rows::pod_status::{PodSummary, moment};
use crate::print::{Paint, age};

/// A pod and its events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PodPage<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) events: &'a [Event],
}

impl PodPage<'_> {
    pub(crate) fn text(&self, now: Timestamp, paint: Paint, width: usize) -> String {
        let Pod { spec, status, .. } = self.pod;
        let mut page = self.head(now, paint);
        page.push_str(&containers("Init Containers", &spec.init_containers, &status.init_container_statuses));
        page.push_str(&containers("Containers", &spec.containers, &status.container_statuses));
        page.push_str(&self.conditions(now, paint, width));
        page.push_str(&self.scheduling());
        page.push_str(&events(self.events, now, paint, width));
        page
    }

    fn head(&self, now: Timestamp, paint: Paint) -> String {
        let Pod { meta, spec, status } = self.pod;
        let summary = PodSummary::of(self.pod);
        let node = spec.node_name.as_ref().map(|node| match status.host_ip {
            Some(ip) => format!("{node}/{ip}"),
            None => node.to_string(),
        });
        let owner = meta.controller().map(|owner| format!("{}/{}", owner.kind, owner.name));
        let policy = spec.preemption_policy.map(|policy| policy.to_string());
        let mut fields = Fields::top()
            .add("Name", meta.name.as_str())
            .all("Namespace", meta.namespace.iter().map(ToString::to_string))
            .add("Priority", spec.priority().to_string())
            .add_some("Priority Class Name", &spec.priority_class_name)
            .add_some("Preemption Policy", &policy.unwrap_or_default())
            .add_some("Service Account", &spec.service_account_name)
            .all("Node", node)
            .add_some("Nominated Node", status.nominated_node_name.as_ref().map_or("", |node| node.as_str()))
            .add("Start Time", time(status.start_time))
            .pairs("Labels", &meta.labels, "=")
            .pairs("Annotations", &meta.annotations, ": ")
            .painted("Status", summary.cell(), paint);
        if let Some(deletion) = meta.deletion_timestamp {
            let grace = meta.deletion_grace_period_seconds.unwrap_or_default();
            let due = if deletion > now {
                format!("ends in {}", age::until(deletion, now))
            } else {
                format!("ended {} ago", age::since(Some(deletion), now))
            };
            fields = fields.add("Terminating", format!("grace period of {grace}s {due}"));
        }
        fields
            .add("Phase", status.phase.to_string())
            .add_some("Reason", &status.reason)
            .add_some("Message", &status.message)
            .all("IPs", status.pod_ips.iter().map(ToString::to_string))
            .all("Controlled By", owner)
            .text()
    }

    fn conditions(&self, now: Timestamp, paint: Paint, width: usize) -> String {
        let rows = self.pod.status.conditions.iter().map(|condition| ConditionRow {
            kind: &condition.kind,
            status: condition.status.to_string(),
            times: vec![("LastTransitionTime", condition.last_transition_time)],
            reason: &condition.reason,
            message: &condition.message,
        });
        conditions(&rows.collect::<Vec<_>>(), now, paint, width)
    }

    fn scheduling(&self) -> String {
        let Pod { spec, status, .. } = self.pod;
        let qos = status.qos_class.unwrap_or_else(|| self.pod.qos());
        let volumes = spec.volumes.iter().map(|volume| format!("{} ({})", volume.name, source(volume)));
        Fields::top()
            .all("Volumes", volumes)
            .add("QoS Class", qos.to_string())
            .pairs("Node-Selectors", &spec.node_selector, "=")
            .all("Tolerations", spec.tolerations.iter().map(toleration))
            .text()
    }
}

fn containers(title: &str, containers: &[Container], statuses: &[pb::ContainerStatus]) -> String {
    if containers.is_empty() {
        return String::new();
    }
    let mut text = format!("{title}:\n");
    for container in containers {
        let status = statuses.iter().find(|status| status.name == container.name);
        text.push_str(&format!("  {}:\n{}", container.name, describe(container, status)));
    }
    text
}

fn describe(container: &Container, status: Option<&pb::ContainerStatus>) -> String {
    let mut fields = Fields::within(4).add("Image", &container.image);
    if let Some(status) = status {
        fields = fields.add_some("Container ID", &status.container_id);
    }
    if !container.command.is_empty() {
        fields = fields.all("Command", container.command.iter().cloned());
    }
    if !container.args.is_empty() {
        fields = fields.all("Args", container.args.iter().cloned());
    }
    if !container.ports.is_empty() {
        fields = fields.all("Ports", container.ports.iter().map(port));
    }
    if let Some(status) = status {
        fields = fields.all("State", state(status.state.as_ref()));
        if status.last_state.as_ref().is_some_and(|last| last.state.is_some()) {
            fields = fields.all("Last State", state(status.last_state.as_ref()));
        }
        fields = fields
            .add("Ready", status.ready.to_string())
            .add("Restart Count", status.restart_count.to_string());
    }
    let amounts = |amounts: &Resources| -> Vec<String> {
        amounts.iter().map(|(name, amount)| format!("{name}: {amount}")).collect()
    };
    for (label, amounts) in [
        ("Limits", amounts(&container.resources.limits)),
        ("Requests", amounts(&container.resources.requests)),
    ] {
        if !amounts.is_empty() {
            fields = fields.all(label, amounts);
        }
    }
    if let Some(security) = &container.security_context {
        fields = fields.all("Security Context", security_context(security));
    }
    fields
        .all("Environment", container.env.iter().map(variable))
        .all("Mounts", container.volume_mounts.iter().map(mount))
        .text()
}

fn security_context(security: &pb::SecurityContext) -> Vec<String> {
    let id = |id: Option<i64>| id.map(|id| id.to_string());
    let flag = |flag: Option<bool>| flag.map(|flag| flag.to_string());
    let settings = [
        ("runAsUser", id(security.run_as_user)),
        ("runAsGroup", id(security.run_as_group)),
        ("runAsNonRoot", flag(security.run_as_non_root)),
        ("privileged", flag(security.privileged)),
        ("allowPrivilegeEscalation", flag(security.allow_privilege_escalation)),
    ];
    settings.into_iter().filter_map(|(name, value)| Some(format!("{name}: {}", value?))).collect()
}

fn port(port: &pb::ContainerPort) -> String {
    let protocol = if port.protocol.is_empty() { "TCP" } else { &port.protocol };
    let host = if port.host_port > 0 { format!(" on the node's {}", port.host_port) } else { String::new() };
    format!("{}/{protocol}{host}", port.container_port)
}

fn variable(variable: &pb::EnvVar) -> String {
    let from = variable.value_from.as_ref().and_then(|from| {
        let secret = from.secret_key_ref.as_ref().map(|key| ("secret", key));
        secret.or_else(|| from.config_map_key_ref.as_ref().map(|key| ("config map", key)))
    });
    match from {
        // Only the origin is shown, because the value of a secret must not be printed.
        Some((what, key)) => format!("{}: <key {} of {what} {}>", variable.name, key.key, key.name),
        None => format!("{}: {}", variable.name, variable.value),
    }
}

fn mount(mount: &pb::VolumeMount) -> String {
    let access = if mount.read_only { "ro" } else { "rw" };
    format!("{} from {} ({access})", mount.mount_path, mount.name)
}

fn state(state: Option<&pb::ContainerState>) -> Vec<String> {
    let text = |label: &str, value: &str| (!value.is_empty()).then(|| format!("{label}: {value}"));
    let at = |label: &str, time: Option<&prost_types::Timestamp>| {
        moment(time).map(|time| format!("{label}: {}", age::moment(time)))
    };
    match state.and_then(|state| state.state.as_ref()) {
        None => Vec::new(),
        Some(State::Waiting(it)) => {
            let lines =
                [Some("Waiting".to_owned()), text("Reason", &it.reason), text("Message", &it.message)];
            lines.into_iter().flatten().collect()
        }
        Some(State::Running(it)) => [Some("Running".to_owned()), at("Started", it.started_at.as_ref())]
            .into_iter()
            .flatten()
            .collect(),
        Some(State::Terminated(it)) => {
            let lines = [
                Some("Terminated".to_owned()),
                text("Reason", &it.reason),
                text("Message", &it.message),
                Some(format!("Exit Code: {}", it.exit_code)),
                (it.signal != 0).then(|| format!("Signal: {}", it.signal)),
                at("Started", it.started_at.as_ref()),
                at("Finished", it.finished_at.as_ref()),
            ];
            lines.into_iter().flatten().collect()
        }
    }
}

fn source(volume: &pb::Volume) -> String {
    match &volume.source {
        None => "nothing".to_owned(),
        Some(Source::EmptyDir(it)) if it.size_limit.is_empty() => "emptyDir".to_owned(),
        Some(Source::EmptyDir(it)) => format!("emptyDir of {}", it.size_limit),
        Some(Source::HostPath(it)) => format!("host path {}", it.path),
        Some(Source::Secret(it)) => format!("secret {}", it.name),
        Some(Source::ConfigMap(it)) => format!("config map {}", it.name),
        Some(Source::PersistentVolumeClaim(it)) => format!("claim {}", it.name),
    }
}

/// A toleration as kubectl writes it: `key=value:Effect op=Exists for 300s`.
fn toleration(toleration: &Toleration) -> String {
    let Toleration { key, operator, value, effect, toleration_seconds } = toleration;
    let value = if value.is_empty() { String::new() } else { format!("={value}") };
    let effect = effect.map(|effect| format!(":{effect}")).unwrap_or_default();
    let operator = if *operator == TolerationOperator::Exists { " op=Exists" } else { "" };
    let time = toleration_seconds.map(|seconds| format!(" for {seconds}s")).unwrap_or_default();
    format!("{key}{value}{effect}{operator}{time}").trim_start().to_owned()
}

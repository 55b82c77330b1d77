//! The page of a node.

use jiff::Timestamp;
use muster_proto::event::Event;
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::quantity::Resources;

use super::fields::Fields;
use super::{ConditionRow, conditions, events, fitting, resources, time};
use crate::print::rows::node_status;
use crate::print::{NONE, Paint, Table, age};

/// A node and the records that belong to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodePage<'a> {
    pub(crate) node: &'a Node,
    pub(crate) lease: Option<&'a Lease>,
    /// The pods bound to it.
    pub(crate) pods: &'a [Pod],
    pub(crate) events: &'a [Event],
}

impl NodePage<'_> {
    pub(crate) fn text(&self, now: Timestamp, paint: Paint, width: usize) -> String {
        let mut page = self.head(now, paint);
        page.push_str(&self.lease());
        page.push_str(&self.conditions(now, paint, width));
        let status = &self.node.status;
        let addresses = status.addresses.iter();
        page.push_str(&block("Addresses", addresses.map(|it| (it.kind.to_string(), it.address.clone()))));
        for (title, amounts) in [("Capacity", &status.capacity), ("Allocatable", &status.allocatable)] {
            page.push_str(&block(
                title,
                amounts.iter().map(|(name, amount)| (name.clone(), amount.to_string())),
            ));
        }
        page.push_str(&self.system());
        page.push_str(&self.pods(now, paint, width));
        page.push_str(&events(self.events, now, paint, width));
        page
    }

    fn head(&self, now: Timestamp, paint: Paint) -> String {
        let Node { meta, spec, .. } = self.node;
        let mut fields = Fields::top()
            .add("Name", meta.name.as_str())
            .painted("Status", node_status(self.node), paint)
            .all("Roles", self.node.roles().first().map(|_| self.node.roles().join(",")))
            .pairs("Labels", &meta.labels, "=")
            .pairs("Annotations", &meta.annotations, ": ")
            .add("CreationTimestamp", time(meta.creation_timestamp))
            .all("Taints", spec.taints.iter().map(ToString::to_string))
            .add("Unschedulable", spec.unschedulable.to_string());
        if let Some(moment) = meta.deletion_timestamp {
            let moment = age::moment(moment);
            fields = fields
                .add("Deleted", format!("{moment}, waiting for finalizers {}", meta.finalizers.join(", ")));
        }
        if !spec.cordons.is_empty() {
            let cordons = spec.cordons.iter().map(|cordon| {
                let since = age::since(Some(cordon.requested_at), now);
                let text = format!("{since} ago by {}: {}", cordon.who(), cordon.reason);
                match cordon.expires_at {
                    Some(end) => format!("{text} (until {})", time(Some(end))),
                    None => text,
                }
            });
            fields = fields.all("Cordoned", cordons);
        }
        if let Some(drain) = &spec.drain {
            let since = age::since(Some(drain.requested_at), now);
            let request =
                format!("{}, requested {since} ago by {}: {}", drain.state, drain.requested_by, drain.reason);
            let message = (!drain.message.is_empty()).then(|| drain.message.clone());
            let deadline = drain.deadline.map(|deadline| format!("deadline {}", age::moment(deadline)));
            fields = fields.all("Drain", [Some(request), message, deadline].into_iter().flatten());
        }
        fields.text()
    }

    fn lease(&self) -> String {
        let Some(lease) = self.lease else { return Fields::top().add("Lease", NONE).text() };
        let spec = &lease.spec;
        let duration = spec.lease_duration_seconds;
        let fields = Fields::within(2)
            .add("HolderIdentity", &spec.holder_identity)
            .add("AcquireTime", time(spec.acquire_time))
            .add("RenewTime", time(spec.renew_time))
            .add("Duration", duration.map_or_else(|| NONE.to_owned(), |seconds| format!("{seconds}s")));
        format!("Lease:\n{}", fields.text())
    }

    fn conditions(&self, now: Timestamp, paint: Paint, width: usize) -> String {
        let rows = self.node.status.conditions.iter().map(|condition| ConditionRow {
            kind: &condition.kind,
            status: condition.status.to_string(),
            times: vec![
                ("LastHeartbeatTime", condition.last_heartbeat_time),
                ("LastTransitionTime", condition.last_transition_time),
            ],
            reason: &condition.reason,
            message: &condition.message,
        });
        conditions(&rows.collect::<Vec<_>>(), now, paint, width)
    }

    fn system(&self) -> String {
        let Node { spec, status, .. } = self.node;
        let info = &status.node_info;
        let swap = info.swap.as_ref().and_then(|swap| swap.capacity).map(|bytes| bytes.to_string());
        let system = Fields::within(2)
            .add("Machine ID", &info.machine_id)
            .add("System UUID", &info.system_uuid)
            .add("Boot ID", &info.boot_id)
            .add("Kernel Version", &info.kernel_version)
            .add("OS Image", &info.os_image)
            .add("Operating System", &info.operating_system)
            .add("Architecture", &info.architecture)
            .add("Container Runtime Version", &info.container_runtime_version)
            .add("Agent Version", &info.kubelet_version)
            .add_some("Swap", &swap.unwrap_or_default());
        let network = Fields::top()
            .all("PodCIDRs", spec.pod_cidrs.iter().map(ToString::to_string))
            .add_some("ProviderID", &spec.provider_id)
            .add_some("Agent Address", &status.agent_address)
            .add_some(
                "Agent Port",
                &Some(status.agent_port)
                    .filter(|port| *port > 0)
                    .map(|port| port.to_string())
                    .unwrap_or_default(),
            );
        format!("System Info:\n{}{}", system.text(), network.text())
    }

    /// The pods that use resources of the node, and how much they use.
    fn pods(&self, now: Timestamp, paint: Paint, width: usize) -> String {
        let pods: Vec<&Pod> = self.pods.iter().filter(|pod| !pod.is_finished()).collect();
        let allocatable = &self.node.status.allocatable;
        let mut text = format!("Non-terminated Pods:  ({} in total)\n", pods.len());
        // In a narrow terminal without the limits: requests are what the node reserves.
        let table = |is_wide: bool| {
            let headers = [
                "Namespace",
                "Name",
                "CPU Requests",
                "CPU Limits",
                "Memory Requests",
                "Memory Limits",
                "Age",
            ];
            let shown = |column: &usize| is_wide || !headers[*column].ends_with("Limits");
            let columns: Vec<usize> = (0..headers.len()).filter(shown).collect();
            let mut table = Table::new(columns.iter().map(|column| headers[*column])).indented(2);
            for pod in &pods {
                let (requests, limits) = (resources::requests(pod), resources::limits(pod));
                let share = |amounts: &Resources, name| resources::share(amounts, name, allocatable);
                let cells = [
                    pod.meta.namespace.as_ref().map(ToString::to_string).unwrap_or_default(),
                    pod.meta.name.as_str().to_owned(),
                    share(&requests, "cpu"),
                    share(&limits, "cpu"),
                    share(&requests, "memory"),
                    share(&limits, "memory"),
                    age::since(pod.meta.creation_timestamp, now),
                ];
                table.push(columns.iter().map(|column| cells[*column].clone()));
            }
            table
        };
        if !pods.is_empty() {
            text.push_str(&fitting(table, paint, width));
        }
        let requests = resources::sum(pods.iter().map(|pod| resources::requests(pod)));
        let limits = resources::sum(pods.iter().map(|pod| resources::limits(pod)));
        text.push_str("Allocated resources:\n");
        let mut table = Table::new(["Resource", "Requests", "Limits"]).indented(2);
        let count = Resources::from([(
            "pods".to_owned(),
            muster_proto::quantity::Quantity::whole(pods.len() as i64),
        )]);
        for name in resources::names(&[allocatable, &requests, &limits]) {
            let (requests, limits) = match name.as_str() {
                "pods" => (resources::share(&count, "pods", allocatable), String::new()),
                name => (
                    resources::share(&requests, name, allocatable),
                    resources::share(&limits, name, allocatable),
                ),
            };
            table.push([name, requests, limits]);
        }
        text.push_str(&table.take(paint));
        text
    }
}

/// A title with a nested field for each pair.
fn block(title: &str, pairs: impl IntoIterator<Item = (String, String)>) -> String {
    let mut pairs = pairs.into_iter().peekable();
    if pairs.peek().is_none() {
        return Fields::top().add(title, NONE).text();
    }
    let fields = pairs.fold(Fields::within(2), |fields, (label, value)| fields.add(&label, value));
    format!("{title}:\n{}", fields.text())
}

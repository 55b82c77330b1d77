//! Waits until the fleet is ready: all started nodes are registered, and the controller has seen them.

use std::time::Duration;

use muster_grpc::fleet_service_client::FleetServiceClient;
use muster_proto::condition::{ConditionStatus, types};
use muster_proto::identity::ServerRole;
use muster_proto::key::Key;
use muster_proto::node::Node;
use muster_proto::pb::GetFleetRequest;
use muster_rpc::tls::ClientTls;
use muster_store_client::{StoreClient, StoreEndpoints};
use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint};

use super::UpError;

/// The interval between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How many nodes have come up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// Nodes that were started.
    pub(super) started: usize,
    /// Started nodes that are registered in the store.
    pub(super) registered: usize,
    /// Nodes with a reported status, as the controller counts them.
    pub(super) seen: usize,
}

impl Progress {
    pub(super) fn is_done(&self) -> bool {
        self.registered >= self.started && self.seen >= self.started
    }

    pub(super) fn line(&self) -> String {
        let Progress { started, registered, seen } = self;
        format!("{registered} of {started} nodes are registered, the controller has seen {seen}")
    }
}

/// The clients to ask and the nodes to wait for.
pub(super) struct FleetReadiness {
    store: StoreClient,
    controller: FleetServiceClient<Channel>,
    /// The number of simulated nodes, and how many of their agents have connected.
    simulated: Option<(usize, watch::Receiver<usize>)>,
    /// The node of this machine.
    local_node: Option<Key>,
}

impl FleetReadiness {
    pub(super) fn new(
        (store, controller): (&str, &str),
        tls: Option<&ClientTls>,
        simulated: Option<(usize, watch::Receiver<usize>)>,
        local_node: Option<Key>,
    ) -> Result<FleetReadiness, UpError> {
        let endpoints = StoreEndpoints::new([store]).with_tls(tls.cloned());
        let client = StoreClient::connect(endpoints)
            .map_err(|error| UpError::Unanswered("store", store.to_owned(), error.to_string()))?;
        let unusable = |error: &dyn std::fmt::Display| {
            UpError::Unanswered("controller", controller.to_owned(), error.to_string())
        };
        let target = match tls {
            Some(tls) => tls.target(controller, ServerRole::Controller).map_err(|error| unusable(&error))?,
            None => Endpoint::from_shared(controller.to_owned()).map_err(|error| unusable(&error))?.into(),
        };
        let controller = FleetServiceClient::new(target.connect_lazy());
        Ok(FleetReadiness { store: client, controller, simulated, local_node })
    }

    /// Checks until all nodes are there, and calls `on_progress` after each check.
    pub(super) async fn wait(&mut self, mut on_progress: impl FnMut(Progress)) -> Progress {
        loop {
            let progress = self.check().await;
            on_progress(progress);
            if progress.is_done() {
                return progress;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// The current record of this machine's node.
    pub(super) async fn local_node(&self) -> Option<Node> {
        self.store.get(self.local_node.as_ref()?).await.ok()
    }

    async fn check(&mut self) -> Progress {
        let mut progress = Progress::default();
        if let Some((started, connected)) = &self.simulated {
            progress.started += started;
            progress.registered += *connected.borrow();
        }
        if self.local_node.is_some() {
            progress.started += 1;
            progress.registered += usize::from(self.local_node().await.is_some());
        }
        // A controller that does not answer yet has seen no nodes.
        if let Ok(answer) = self.controller.get_fleet(GetFleetRequest {}).await {
            let fleet = answer.into_inner().fleet.unwrap_or_default();
            let seen = fleet.ready_nodes + fleet.not_ready_nodes;
            progress.seen = usize::try_from(seen).unwrap_or_default();
        }
        progress
    }
}

/// The conditions of this machine's node that are not as they should be, one per line. They do not stop `muster up`.
pub(super) fn unhealthy_conditions(node: &Node) -> String {
    let name = &node.meta.name;
    let mut text = String::new();
    for condition in &node.status.conditions {
        let healthy =
            if condition.kind == types::READY { ConditionStatus::True } else { ConditionStatus::False };
        if condition.status != healthy {
            let (kind, status) = (&condition.kind, condition.status);
            text.push_str(&format!("this machine, node {name}: {kind} is {status}: {}\n", condition.message));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::fleet_spec::FleetSpec;
    use jiff::Timestamp;

    #[tokio::test]
    async fn an_unusable_address_is_reported_with_its_component() {
        let good = "http://127.0.0.1:1";
        for (store, controller, expected) in [
            ("ftp://a", good, "the store at ftp://a does"),
            (good, "http://", "the controller at http:// does"),
        ] {
            let refused = FleetReadiness::new((store, controller), None, None, None).err().unwrap();
            assert!(refused.to_string().starts_with(expected), "{refused}");
            assert!(refused.hint().contains("--listen"), "{refused}");
        }
    }

    #[test]
    fn only_unhealthy_conditions_are_listed() {
        let mut node = FleetSpec { nodes: 1, zones: 1 }.node(0, Timestamp::UNIX_EPOCH);
        assert_eq!(unhealthy_conditions(&node), "");
        let disk =
            node.status.conditions.iter_mut().find(|found| found.kind == types::DISK_PRESSURE).unwrap();
        disk.status = ConditionStatus::True;
        disk.message = "it is full".to_owned();
        assert_eq!(
            unhealthy_conditions(&node),
            "this machine, node sim-1: DiskPressure is True: it is full\n"
        );
    }

    #[test]
    fn a_fleet_is_ready_when_all_nodes_are_registered_and_seen() {
        for (started, registered, seen, done) in
            [(9, 9, 9, true), (9, 9, 8, false), (9, 8, 9, false), (0, 0, 0, true), (1, 1, 5, true)]
        {
            assert_eq!(
                Progress { started, registered, seen }.is_done(),
                done,
                "{started} {registered} {seen}"
            );
        }
    }
}

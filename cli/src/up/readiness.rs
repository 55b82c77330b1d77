//! Waiting for a new fleet: everybody who was started is on the roll, and the controller has seen them.

use std::time::Duration;

use muster_grpc::fleet_service_client::FleetServiceClient;
use muster_proto::condition::{ConditionStatus, types};
use muster_proto::key::Key;
use muster_proto::node::Node;
use muster_proto::pb::GetFleetRequest;
use muster_rpc::tls::ClientTls;
use muster_store_client::{StoreClient, StoreEndpoints};
use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint};

use super::Failure;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// How far the fleet is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// Nodes that were started.
    pub(super) wanted: usize,
    /// Those of them that the store hears.
    pub(super) heard: usize,
    /// Nodes whose agents said how they are, as the controller sees it.
    pub(super) seen: usize,
}

impl Progress {
    pub(super) fn is_done(&self) -> bool {
        self.heard >= self.wanted && self.seen >= self.wanted
    }

    pub(super) fn line(&self) -> String {
        format!("{} of {} nodes are on the roll, the controller sees {}", self.heard, self.wanted, self.seen)
    }
}

/// Whom to ask and whom to wait for.
pub(super) struct Waiting {
    store: StoreClient,
    controller: FleetServiceClient<Channel>,
    simulated: Option<(usize, watch::Receiver<usize>)>,
    /// This machine's own node.
    own: Option<Key>,
}

impl Waiting {
    pub(super) fn new(
        (store, controller): (&str, &str),
        tls: Option<&ClientTls>,
        simulated: Option<(usize, watch::Receiver<usize>)>,
        own: Option<Key>,
    ) -> Result<Waiting, Failure> {
        let endpoints = StoreEndpoints::new([store]).with_tls(tls.cloned());
        let client = StoreClient::connect(endpoints)
            .map_err(|error| Failure::Unanswered("store", store.to_owned(), error.to_string()))?;
        let unusable = |error: &dyn std::fmt::Display| {
            Failure::Unanswered("controller", controller.to_owned(), error.to_string())
        };
        let mut endpoint = Endpoint::from_shared(controller.to_owned()).map_err(|error| unusable(&error))?;
        if let Some(tls) = tls {
            endpoint = endpoint.tls_config(tls.config()).map_err(|error| unusable(&error))?;
        }
        let controller = FleetServiceClient::new(endpoint.connect_lazy());
        Ok(Waiting { store: client, controller, simulated, own })
    }

    /// Looks until all are there; tells of every step.
    pub(super) async fn run(&mut self, mut tell: impl FnMut(Progress)) -> Progress {
        loop {
            let progress = self.look().await;
            tell(progress);
            if progress.is_done() {
                return progress;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// This machine's own node as it is now.
    pub(super) async fn own_node(&self) -> Option<Node> {
        self.store.get(self.own.as_ref()?).await.ok()
    }

    async fn look(&mut self) -> Progress {
        let mut progress = Progress::default();
        if let Some((wanted, heard)) = &self.simulated {
            progress.wanted += wanted;
            progress.heard += *heard.borrow();
        }
        if self.own.is_some() {
            progress.wanted += 1;
            progress.heard += usize::from(self.own_node().await.is_some());
        }
        // A controller that does not answer yet has seen nobody.
        if let Ok(answer) = self.controller.get_fleet(GetFleetRequest {}).await {
            let fleet = answer.into_inner().fleet.unwrap_or_default();
            let judged = fleet.ready_nodes + fleet.not_ready_nodes;
            progress.seen = usize::try_from(judged).unwrap_or_default();
        }
        progress
    }
}

/// What is wrong with this machine, a line each: Muster runs all the same.
pub(super) fn troubles(node: &Node) -> String {
    let name = &node.meta.name;
    let mut text = String::new();
    for condition in &node.status.conditions {
        let is_well =
            if condition.kind == types::READY { ConditionStatus::True } else { ConditionStatus::False };
        if condition.status != is_well {
            let (kind, status) = (&condition.kind, condition.status);
            text.push_str(&format!("this machine, node {name}: {kind} is {status}: {}\n", condition.message));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::fleet_spec::Blueprint;
    use jiff::Timestamp;

    #[tokio::test]
    async fn who_cannot_be_asked_is_named() {
        let good = "http://127.0.0.1:1";
        for (store, controller, said) in [
            ("ftp://a", good, "the store at ftp://a does"),
            (good, "http://", "the controller at http:// does"),
        ] {
            let refused = Waiting::new((store, controller), None, None, None).err().unwrap();
            assert!(refused.to_string().starts_with(said), "{refused}");
            assert!(refused.hint().contains("--listen"), "{refused}");
        }
    }

    #[test]
    fn only_what_is_wrong_with_this_machine_is_told() {
        let mut node = Blueprint { nodes: 1, zones: 1 }.node(0, Timestamp::UNIX_EPOCH);
        assert_eq!(troubles(&node), "");
        let disk =
            node.status.conditions.iter_mut().find(|found| found.kind == types::DISK_PRESSURE).unwrap();
        disk.status = ConditionStatus::True;
        disk.message = "it is full".to_owned();
        assert_eq!(troubles(&node), "this machine, node sim-1: DiskPressure is True: it is full\n");
    }

    #[test]
    fn a_fleet_is_ready_when_all_are_heard_and_seen() {
        for (wanted, heard, seen, done) in
            [(9, 9, 9, true), (9, 9, 8, false), (9, 8, 9, false), (0, 0, 0, true), (1, 1, 5, true)]
        {
            assert_eq!(Progress { wanted, heard, seen }.is_done(), done, "{wanted} {heard} {seen}");
        }
    }
}

//! Signs of life of the real agent: its lease, its status, and a store that stops, freezes or is cut off.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]
#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]

mod network_link;
mod outages;
mod renewals;
mod statuses;

use muster_proto::pb;
use muster_tests::agent_process::{AgentHost, AgentProcess, is_ready, lease_where, node_where, renewed_at};
use muster_tests::fixtures::*;
use muster_tests::store_process::{StoreLaunch, StoreProcess, TIMEOUT, free_port};
use muster_tests::{Api, Watch, WatchQuery, eventually};
use tempfile::TempDir;

/// A store that can come back at the same place, and an agent whose node is ready and has a lease.
struct World {
    directory: TempDir,
    host: AgentHost,
    port: u16,
}

impl World {
    async fn new() -> (World, StoreProcess, AgentProcess) {
        World::with(&[]).await
    }

    /// With an agent that waits 5 s for an answer, and so takes no store for lost that is slow for a moment, and that
    /// renews its lease every 10 s.
    async fn unhurried() -> (World, StoreProcess, AgentProcess) {
        World::with(&[("node-status-update-frequency", "5s"), ("node-lease-duration-seconds", "40")]).await
    }

    async fn with(flags: &[(&str, &str)]) -> (World, StoreProcess, AgentProcess) {
        let world =
            World { directory: tempfile::tempdir().unwrap(), host: AgentHost::new(), port: free_port() };
        let store = world.store();
        let launch = world.host.agent("n1", &store.url());
        let agent = flags.iter().fold(launch, |launch, (flag, value)| launch.flag(flag, value)).start();
        settled(&store.api(), &agent).await;
        (world, store, agent)
    }

    fn store(&self) -> StoreProcess {
        StoreLaunch::on(self.directory.path()).at(self.port).start()
    }
}

/// The node once the agent has posted a status of its own and renewed its lease.
async fn settled(api: &Api, agent: &AgentProcess) -> pb::Node {
    eventually(TIMEOUT, "a status and a renewal of its own are taken", || async {
        let state = agent.state().await;
        (state.acknowledged_status.is_some() && state.acknowledged_renewal_at.is_some()).then_some(())
    })
    .await;
    node_where(api, "n1", "it is ready", is_ready).await
}

async fn renewed_since(api: &Api, before: &pb::Lease) -> pb::Lease {
    lease_where(api, "n1", "it was renewed", |lease| renewed_at(lease) > renewed_at(before)).await
}

/// The renewals from now on.
async fn renewals(api: &Api) -> Watch<pb::Lease> {
    let follow =
        WatchQuery { namespace: "kube-node-lease", version: api.revision().await, ..WatchQuery::default() };
    api.watch(follow).await.unwrap()
}

/// A moment as a number.
fn micros((seconds, nanos): (i64, i32)) -> i64 {
    seconds * 1_000_000 + i64::from(nanos) / 1_000
}

async fn lease(api: &Api) -> pb::Lease {
    lease_where(api, "n1", "it exists", |_| true).await
}

/// Writes over the node's Ready, as a controller does that heard nothing for too long.
async fn set_ready_unknown(api: &Api) -> pb::Node {
    let node = api.get::<pb::Node>("n1").await.unwrap().at(0);
    let overwritten = node.status(|status| {
        for condition in status.conditions.iter_mut().filter(|condition| condition.r#type == "Ready") {
            "Unknown".clone_into(&mut condition.status);
            "NodeStatusUnknown".clone_into(&mut condition.reason);
            condition.last_transition_time =
                Some(prost_types::Timestamp { seconds: 1_000_000_000, nanos: 0 });
        }
    });
    api.update_status(overwritten).await.unwrap()
}

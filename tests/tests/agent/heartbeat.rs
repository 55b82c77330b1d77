//! Heartbeats of the real agent: its lease, its status, and a store that is stopped, paused or unreachable.

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

/// A store that can be restarted at the same address, and the host of an agent.
struct StoreAndHost {
    directory: TempDir,
    host: AgentHost,
    port: u16,
}

impl StoreAndHost {
    async fn new() -> (StoreAndHost, StoreProcess, AgentProcess) {
        StoreAndHost::with(&[]).await
    }

    /// With an agent that waits 5 s for an answer, so that a slow store does not count as lost, and that renews its
    /// lease every 10 s.
    async fn with_long_timeouts() -> (StoreAndHost, StoreProcess, AgentProcess) {
        StoreAndHost::with(&[("node-status-update-frequency", "5s"), ("node-lease-duration-seconds", "40")])
            .await
    }

    async fn with(flags: &[(&str, &str)]) -> (StoreAndHost, StoreProcess, AgentProcess) {
        let setup = StoreAndHost {
            directory: tempfile::tempdir().unwrap(),
            host: AgentHost::new(),
            port: free_port(),
        };
        let store = setup.store();
        let launch = setup.host.agent("n1", &store.url());
        let agent = flags.iter().fold(launch, |launch, (flag, value)| launch.flag(flag, value)).start();
        settled(&store.api(), &agent).await;
        (setup, store, agent)
    }

    fn store(&self) -> StoreProcess {
        StoreLaunch::on(self.directory.path()).at(self.port).start()
    }
}

/// Waits until the agent has posted its status and renewed its lease; returns the node.
async fn settled(api: &Api, agent: &AgentProcess) -> pb::Node {
    eventually(TIMEOUT, "its status and a renewal are acknowledged", || async {
        let state = agent.state().await;
        (state.acknowledged_status.is_some() && state.acknowledged_renewal_at.is_some()).then_some(())
    })
    .await;
    node_where(api, "n1", "it is ready", is_ready).await
}

async fn renewed_since(api: &Api, before: &pb::Lease) -> pb::Lease {
    lease_where(api, "n1", "it was renewed", |lease| renewed_at(lease) > renewed_at(before)).await
}

/// A watch of the renewals from now on.
async fn renewals(api: &Api) -> Watch<pb::Lease> {
    let follow =
        WatchQuery { namespace: "kube-node-lease", version: api.revision().await, ..WatchQuery::default() };
    api.watch(follow).await.unwrap()
}

/// A time in microseconds.
fn micros((seconds, nanos): (i64, i32)) -> i64 {
    seconds * 1_000_000 + i64::from(nanos) / 1_000
}

async fn lease(api: &Api) -> pb::Lease {
    lease_where(api, "n1", "it exists", |_| true).await
}

/// Sets Ready to Unknown, as the controller does after the grace period.
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

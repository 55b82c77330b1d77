//! Certificates of real processes that change while they run, and connections that end: no renewal is missed.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use futures_util::StreamExt;
use muster_proto::identity::ServerRole;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::watch_event::WatchEvent;
use muster_store_client::{StoreClient, StoreEndpoints, WatchOptions};
use muster_tests::agent_process::{AgentHost, AgentProcess, is_ready, lease_where, node_where, renewed_at};
use muster_tests::api::Api;
use muster_tests::certificate_authority::Authority;
use muster_tests::fixtures::*;
use muster_tests::store_process::{StoreLaunch, StoreProcess};
use muster_tests::{TIMEOUT, eventually, in_time};
use rustix::process::Signal;
use tempfile::TempDir;

/// The duration of a node's lease, in seconds. It is renewed four times in that time.
const LEASE: i64 = 12;

/// A store with mutual TLS whose connections live for two seconds at most.
struct Secure {
    authority: Authority,
    store: StoreProcess,
    /// Its certificate, key and authorities.
    files: [PathBuf; 3],
    _data: TempDir,
}

impl Secure {
    fn start() -> Secure {
        let (authority, data) = (Authority::new(), tempfile::tempdir().unwrap());
        let [cert, key] = authority.issue("store", "muster:stores");
        let files = [cert, key, authority.own()];
        let mut launch = StoreLaunch::on(data.path());
        for (flag, path) in ["--tls-cert", "--tls-key", "--tls-client-ca"].into_iter().zip(&files) {
            launch = launch.flag(flag, path.to_str().unwrap());
        }
        let store = launch.flag("--max-connection-age", "2s").flag("--shutdown-grace", "1s").start();
        Secure { authority, store, files, _data: data }
    }

    fn url(&self) -> String {
        format!("https://localhost:{}", self.store.grpc_address().port())
    }

    /// The store as an administrator sees it.
    fn client(&self) -> StoreClient {
        let tls = self.authority.client("eva", "muster:admins");
        StoreClient::connect(StoreEndpoints::new([self.url()]).with_tls(Some(tls))).unwrap()
    }

    fn api(&self, authority: &Authority) -> Api {
        let tls = authority.client("eva", "muster:admins");
        Api::of(tls.target(&self.url(), ServerRole::Store).unwrap().connect_lazy())
    }

    fn agent(&self, host: &AgentHost, node: &str, credentials: &Path) -> AgentProcess {
        let launch = host.agent(node, &self.url()).flag("node-lease-duration-seconds", &LEASE.to_string());
        launch.flag("credentials", credentials.to_str().unwrap()).start()
    }
}

/// The lease of a node, asked for again if the connection ended meanwhile.
async fn lease(api: &Api, node: &str) -> pb::Lease {
    lease_where(api, node, "it exists", |_| true).await
}

/// Follows a node's lease through so many renewals: none may come when the lease has expired.
async fn renews(api: &Api, node: &str, times: usize) {
    let mut last = lease(api, node).await;
    for _ in 0..times {
        let before = renewed_at(&last);
        let next = lease_where(api, node, "it is renewed", |lease| renewed_at(lease) > before).await;
        let seconds = |lease: &pb::Lease| renewed_at(lease).map_or(0, |(seconds, _)| seconds);
        assert!(
            seconds(&next) - seconds(&last) < LEASE,
            "{node} missed its deadline: {last:?}, then {next:?}"
        );
        let transitions = |lease: &pb::Lease| lease.spec.as_ref().unwrap().lease_transitions;
        assert_eq!(transitions(&next), transitions(&last), "{node}: the lease was taken again");
        last = next;
    }
}

/// Replaces a file at once, as an operator should.
fn replace(path: &Path, contents: &[u8]) {
    let new = path.with_extension("new");
    fs::write(&new, contents).unwrap();
    fs::rename(new, path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_and_watches_survive_the_ends_of_connections() {
    let (secure, host) = (Secure::start(), AgentHost::new());
    let credentials = secure.authority.credentials("node:n1", "muster:nodes");
    let _agent = secure.agent(&host, "n1", &credentials);
    let (api, client) = (secure.api(&secure.authority), secure.client());
    node_where(&api, "n1", "it is ready", is_ready).await;

    let mut watch = client.watch::<Node>(WatchOptions::default());
    while !matches!(in_time("the list", watch.next()).await, Some(WatchEvent::Synced { .. })) {}
    // A renewal comes every three seconds, so connections end in each round.
    let writing = async {
        for round in 0..4 {
            renews(&api, "n1", 1).await;
            for number in 0..5 {
                let created = Node::try_from(node(&format!("x{round}{number}"))).unwrap();
                client.create(created).await.unwrap();
            }
        }
    };
    let watching = async {
        let mut seen = BTreeSet::new();
        while seen.len() < 20 {
            match watch.next().await {
                Some(WatchEvent::Applied { record }) if record.meta.name.as_str().starts_with('x') => {
                    assert!(seen.insert(record.meta.name.clone()), "{} came twice", record.meta.name);
                }
                Some(WatchEvent::Gone { key, .. }) => panic!("{key} is not gone"),
                Some(_) => {}
                None => panic!("the watch ended"),
            }
        }
    };
    tokio::join!(writing, in_time("all events", watching));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_authority_is_rotated_under_renewing_agents() {
    let (secure, new) = (Secure::start(), Authority::new());
    let hosts: Vec<AgentHost> = (0..3).map(|_| AgentHost::new()).collect();
    let names = ["n1", "n2", "n3"];
    let directories = names.map(|name| secure.authority.credentials(&format!("node:{name}"), "muster:nodes"));
    let agents: Vec<AgentProcess> =
        (0..3).map(|index| secure.agent(&hosts[index], names[index], &directories[index])).collect();
    let api = secure.api(&secure.authority);
    for name in names {
        node_where(&api, name, "it is ready", is_ready).await;
    }
    let [cert, key, authorities] = &secure.files;
    let only_new = fs::read(new.own()).unwrap();
    let both = [fs::read(secure.authority.own()).unwrap(), only_new.clone()].concat();
    let reloaded = async |process: &muster_tests::child_process::ChildProcess, times: f64| {
        process.signal(Signal::HUP);
        eventually(TIMEOUT, "the files are taken over", || async {
            (process.metric("muster_certificate_reloads_total") >= times).then_some(())
        })
        .await;
    };
    let all_renew = async |api: &Api| {
        futures_util::future::join_all(names.map(|name| renews(api, name, 2))).await;
    };

    // First all parts know both authorities, ...
    replace(authorities, &both);
    reloaded(&secure.store, 1.0).await;
    for (agent, directory) in agents.iter().zip(&directories) {
        replace(&directory.join("ca.crt"), &both);
        reloaded(agent, 1.0).await;
    }
    all_renew(&api).await;

    // ... then all certificates are of the new one, ...
    let [new_cert, new_key] = new.issue("store", "muster:stores");
    // The old certificate with the new key is not taken over.
    replace(key, &fs::read(new_key).unwrap());
    secure.store.signal(Signal::HUP);
    secure.store.wait_logged("certificates cannot be read again, the old ones stay in use: --tls-key: ");
    assert!(secure.store.metric("muster_certificate_reload_failures_total") >= 1.0);
    replace(cert, &fs::read(new_cert).unwrap());
    reloaded(&secure.store, 2.0).await;
    for ((agent, directory), name) in agents.iter().zip(&directories).zip(names) {
        let issued = new.credentials(&format!("node:{name}"), "muster:nodes");
        for file in ["tls.key", "tls.crt"] {
            replace(&directory.join(file), &fs::read(issued.join(file)).unwrap());
        }
        reloaded(agent, 2.0).await;
    }

    // ... and at last nobody knows the old one any more.
    replace(authorities, &only_new);
    reloaded(&secure.store, 3.0).await;
    let api = secure.api(&new);
    all_renew(&api).await;
    let refused = secure.api(&secure.authority).get::<pb::Node>("n1").await;
    assert!(refused.is_err(), "a certificate of the old authority is not accepted: {refused:?}");
}

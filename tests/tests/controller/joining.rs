//! A fleet that joins by token and by approval, renews its certificates by itself, survives a new authority, and loses a
//! node by revocation: real processes over mutual TLS, with certificates that live for seconds.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_proto::event::Event;
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_rpc::clock::SystemClock;
use muster_rpc::pki::CertificateFacts;
use muster_rpc::tls::{ClientTls, PemFile};
use muster_store_client::{ListOptions, StoreClient, StoreEndpoints};
use muster_tests::agent_process::{AgentHost, AgentLaunch, AgentProcess};
use muster_tests::child_process::ChildProcess;
use muster_tests::controller_process::ControllerProcess;
use muster_tests::eventually;
use muster_tests::store_process::{StoreLaunch, StoreProcess, muster};
use rustix::process::Signal;
use tempfile::TempDir;

/// Longer than any of the waits takes: a certificate's life, a reload, and a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
const LEASE_SECONDS: i64 = 10;

/// Runs a command that must succeed; returns what it printed.
fn command(args: &[&str]) -> String {
    let output = muster(args);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{args:?}: {printed}{}", String::from_utf8_lossy(&output.stderr));
    printed
}

/// Files that processes read, and an operator replaces.
struct Files {
    directory: TempDir,
}

impl Files {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Replaces a file as a whole.
    fn write(&self, name: &str, content: &str) {
        let aside = self.path("aside");
        fs::write(&aside, content).unwrap();
        fs::rename(aside, self.path(name)).unwrap();
    }

    fn copy(&self, from: &str, to: &str) {
        self.write(to, &fs::read_to_string(self.path(from)).unwrap());
    }

    /// The certificates and keys of store, controller, administrator and signer, from an authority that is created.
    fn create_authority(&self, name: &str) {
        command(&["certs", &self.text(name), "store", "controller", "admin"]);
    }

    /// Puts the files of an authority where the processes read them.
    fn use_certificates(&self, authority: &str) {
        for part in ["store", "controller", "admin"] {
            for ending in ["crt", "key"] {
                self.copy(&format!("{authority}/{part}.{ending}"), &format!("{part}.{ending}"));
            }
        }
    }

    fn use_signer(&self, authority: &str) {
        self.copy(&format!("{authority}/ca.crt"), "signer.crt");
        self.copy(&format!("{authority}/ca.key"), "signer.key");
    }

    fn trust(&self, authorities: &[&str]) {
        let read = |name: &&str| fs::read_to_string(self.path(&format!("{name}/ca.crt"))).unwrap();
        self.write("ca.crt", &authorities.iter().map(read).collect::<String>());
    }

    fn tls_flags(&self, part: &str) -> [(String, String); 3] {
        [
            ("tls-cert", format!("{part}.crt")),
            ("tls-key", format!("{part}.key")),
            ("tls-client-ca", "ca.crt".to_owned()),
        ]
        .map(|(flag, file)| (format!("--{flag}"), self.text(&file)))
    }
}

/// A store and a controller with certificates, and an administrator.
struct SecureFleet {
    files: Files,
    store: StoreProcess,
    controller: ControllerProcess,
    url: String,
    tls: ClientTls,
    client: StoreClient,
    hosts: Vec<AgentHost>,
}

impl SecureFleet {
    fn start(certificate_ttl: &str) -> SecureFleet {
        let files = Files { directory: tempfile::tempdir().unwrap() };
        files.create_authority("old");
        files.use_certificates("old");
        files.use_signer("old");
        files.trust(&["old"]);
        let launch = StoreLaunch::on(&files.path("data"));
        let launch =
            files.tls_flags("store").iter().fold(launch, |launch, (flag, value)| launch.flag(flag, value));
        let store = launch.start();
        let url = store.url().replace("http://127.0.0.1", "https://localhost");
        let mut flags: Vec<String> =
            files.tls_flags("controller").iter().map(|(flag, value)| format!("{flag}={value}")).collect();
        flags.extend([
            format!("--signer-cert={}", files.text("signer.crt")),
            format!("--signer-key={}", files.text("signer.key")),
            format!("--certificate-ttl={certificate_ttl}"),
            "--node-monitor-period=500ms".to_owned(),
            format!("--node-monitor-grace-period={}s", LEASE_SECONDS + 2),
            "--eviction-hold=0s".to_owned(),
        ]);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let controller = ControllerProcess::start(&url, &flags);
        let file = |name: &str| files.path(name);
        let (ca, cert, key) = (file("ca.crt"), file("admin.crt"), file("admin.key"));
        let pem = PemFile::new;
        let tls = ClientTls::read(pem("--ca", &ca), pem("--cert", &cert), pem("--key", &key)).unwrap();
        let client =
            StoreClient::connect(StoreEndpoints::new([url.clone()]).with_tls(Some(tls.clone()))).unwrap();
        SecureFleet { files, store, controller, url, tls, client, hosts: Vec::new() }
    }

    /// `muster`, as the administrator.
    fn muster(&self, args: &[&str]) -> String {
        let (ca, cert, key) =
            (self.files.text("ca.crt"), self.files.text("admin.crt"), self.files.text("admin.key"));
        let own = ["--store", &self.url, "--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key];
        command(&args.iter().copied().chain(own).collect::<Vec<_>>())
    }

    /// Creates a token; returns it and the hash of the authority.
    fn token(&self, args: &[&str]) -> (String, String) {
        let printed = self.muster(&[&["token", "create"], args].concat());
        let hash = printed.split("--ca-hash ").nth(1).unwrap().trim().to_owned();
        (printed.lines().next().unwrap().to_owned(), hash)
    }

    fn launch(&mut self, node: &str, hash: &str) -> AgentLaunch {
        let host = AgentHost::new();
        let launch = host.agent(node, &self.url).flag("ca-hash", hash);
        self.hosts.push(host);
        launch.flag("node-lease-duration-seconds", &LEASE_SECONDS.to_string())
    }

    /// The processes read their files again at once.
    fn reload(&self) {
        let all: [&ChildProcess; 2] = [&self.store, &self.controller];
        all.into_iter().for_each(|process| process.signal(Signal::HUP));
        self.tls.credentials().unwrap().reload().unwrap();
    }

    async fn nodes(&self) -> Vec<Node> {
        let list = self.client.list::<Node>(ListOptions::default()).await;
        list.map(|list| list.records).unwrap_or_default()
    }

    async fn until_ready(&self, count: usize) {
        eventually(PATIENCE, &format!("{count} nodes are ready"), || async {
            (self.nodes().await.iter().filter(|node| node.is_ready()).count() == count).then_some(())
        })
        .await;
    }
}

/// Waits until every agent has renewed its certificate so many more times.
async fn until_renewed(agents: &[(&str, AgentProcess)], times: f64) {
    let count = |agent: &AgentProcess| agent.metric("muster_agent_certificate_renewals_total");
    let before: Vec<f64> = agents.iter().map(|(_, agent)| count(agent)).collect();
    eventually(PATIENCE, &format!("all have renewed {times} times"), || async {
        let mut all = agents.iter().zip(&before);
        all.all(|((_, agent), before)| count(agent) >= before + times).then_some(())
    })
    .await;
}

/// Looks at the leases until it is stopped; returns the longest time that each went without a renewal, in milliseconds.
async fn watch_leases(client: StoreClient, stop: Arc<AtomicBool>) -> Vec<(String, i64)> {
    let mut longest: Vec<(String, i64)> = Vec::new();
    let options =
        ListOptions { namespace: Some("kube-node-lease".parse().unwrap()), ..ListOptions::default() };
    while !stop.load(Ordering::Relaxed) {
        let before = SystemClock::shared().wall();
        if let Ok(leases) = client.list::<Lease>(options.clone()).await {
            for lease in leases.records {
                let Some(renewed) = lease.spec.renew_time else { continue };
                let age = before.duration_since(renewed).as_millis() as i64;
                let name = lease.meta.name.to_string();
                match longest.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, known)) => *known = (*known).max(age),
                    None => longest.push((name, age)),
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    longest
}

fn authorities_of(host: &AgentHost) -> usize {
    let text = fs::read_to_string(host.file("state/credentials/current/ca.crt")).unwrap_or_default();
    CertificateFacts::read_pem(&text).map_or(0, |found| found.len())
}

/// Whether an agent's certificate comes from the authority in this file.
fn is_from(host: &AgentHost, authority: &Path) -> bool {
    let mut verify = Command::new("openssl");
    verify.args(["verify", "-CAfile"]).arg(authority).arg(host.file("state/credentials/current/tls.crt"));
    verify.output().is_ok_and(|output| output.status.success())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_joins_renews_survives_a_new_authority_and_loses_a_revoked_node() {
    let mut fleet = SecureFleet::start("20s");
    let mut agents: Vec<(&str, AgentProcess)> = Vec::new();
    for node in ["n1", "n2", "n3", "n4"] {
        let (token, hash) = fleet.token(&["--node", node, "--ttl", "10m"]);
        let launch = fleet.launch(node, &hash).flag("join-token", &token);
        agents.push((node, launch.spawn()));
    }
    let (_, hash) = fleet.token(&["--node", "unused"]);
    agents.push(("n5", fleet.launch("n5", &hash).spawn()));
    agents[4].1.wait_logged("the request waits for an administrator");
    let pending = fleet.muster(&["get", "csr", "--field-selector", "status.state=Pending", "-o", "name"]);
    let name = pending.trim().strip_prefix("certificaterequest/").unwrap().to_owned();
    assert!(agents[4].1.log().contains(&name), "the agent says which request is its own");
    fleet.until_ready(4).await;
    fleet.muster(&["approve", &name]);
    fleet.until_ready(5).await;

    let stop = Arc::new(AtomicBool::new(false));
    let leases = tokio::spawn(watch_leases(fleet.client.clone(), Arc::clone(&stop)));
    until_renewed(&agents, 3.0).await;

    // The new authority is trusted first, then used, and then the old one is not trusted any more.
    fleet.files.create_authority("new");
    fleet.files.trust(&["old", "new"]);
    fleet.reload();
    eventually(PATIENCE, "all agents trust both", || async {
        fleet.hosts.iter().all(|host| authorities_of(host) == 2).then_some(())
    })
    .await;
    fleet.files.use_signer("new");
    fleet.files.use_certificates("new");
    fleet.reload();
    let new_authority = fleet.files.path("new/ca.crt");
    eventually(PATIENCE, "all certificates come from the new one", || async {
        fleet.hosts.iter().all(|host| is_from(host, &new_authority)).then_some(())
    })
    .await;
    fleet.files.trust(&["new"]);
    fleet.reload();
    eventually(PATIENCE, "all agents trust the new one only", || async {
        fleet.hosts.iter().all(|host| authorities_of(host) == 1).then_some(())
    })
    .await;

    fleet.muster(&["revoke", "node", "n5", "--reason", "stolen"]);
    eventually(PATIENCE, "the revoked node is lost", || async {
        let nodes = fleet.nodes().await;
        let lost = nodes.iter().find(|node| node.meta.name == "n5")?;
        (!lost.is_ready()).then_some(())
    })
    .await;
    let (_, revoked) = agents.pop().unwrap();
    assert!(revoked.metric("muster_agent_certificate_renewals_total") >= 3.0);
    until_renewed(&agents, 1.0).await;

    stop.store(true, Ordering::Relaxed);
    let longest = leases.await.unwrap();
    for (node, millis) in longest.iter().filter(|(node, _)| node != "n5") {
        assert!(*millis < LEASE_SECONDS * 1000, "{node} did not renew its lease for {millis} ms");
    }
    assert!(longest.len() == 5, "{longest:?}");
    let events = fleet.client.list::<Event>(ListOptions::default()).await.unwrap().records;
    let silent: Vec<_> = events.iter().filter(|event| event.reason == "NodeNotReady").collect();
    assert!(silent.iter().all(|event| event.involved.name == "n5"), "{silent:?}");
    assert!(fleet.nodes().await.iter().filter(|node| node.is_ready()).count() == 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_may_not_join_says_why_and_gets_nothing() {
    let mut fleet = SecureFleet::start("1h");
    let (for_n1, hash) = fleet.token(&["--node", "n1", "--ttl", "10m"]);
    let (expired, _) = fleet.token(&["--node", "n2", "--ttl", "1s"]);
    let (for_n3, _) = fleet.token(&["--node", "n3", "--ttl", "10m"]);
    let (for_rack, _) = fleet.token(&["--label", "rack=r1", "--ttl", "10m"]);
    eventually(PATIENCE, "the token has expired", || async {
        (!fleet.muster(&["token", "list"]).contains(expired.split('.').next().unwrap())).then_some(())
    })
    .await;
    let first = fleet.launch("n1", &hash).flag("join-token", &for_n1).spawn();
    fleet.until_ready(1).await;
    let before = fleet.muster(&["get", "csr", "-o", "name"]);
    let other_hash = format!("sha256:{}", "0".repeat(64));
    for (node, token, hash, expected) in [
        ("n2", &for_n3, &hash, "is for node n3, not n2".to_owned()),
        ("n1", &for_n1, &hash, "is used up".to_owned()),
        ("n2", &expired, &hash, "the join token is not valid, or it has expired".to_owned()),
        ("n2", &for_rack, &hash, "is for nodes with the label rack=r1".to_owned()),
        ("n2", &for_n1, &other_hash, "it is another store, or its authority has changed".to_owned()),
    ] {
        let (status, log) = fleet.launch(node, hash).flag("join-token", token).run_to_exit();
        assert!(!status.success() && log.contains(&expected), "{expected}: {log}");
        let secret = token.split('.').nth(1).unwrap();
        assert!(!log.contains(secret), "the log shows a secret");
    }
    assert_eq!(fleet.muster(&["get", "csr", "-o", "name"]), before, "nothing was written");
    // A token that names a node that lives takes nothing over, and one for a rack takes no node that exists.
    let (again, _) = fleet.token(&["--node", "n1"]);
    let (status, log) = fleet.launch("n1", &hash).flag("join-token", &again).run_to_exit();
    assert!(!status.success() && log.contains("another must not take its place"), "{log}");
    let launch = fleet.launch("n1", &hash).flag("join-token", &for_rack).flag("node-labels", "rack=r1");
    let (status, log) = launch.run_to_exit();
    assert!(!status.success() && log.contains("does not name it"), "{log}");
    // After a restart the agent needs no token.
    let host = fleet.hosts.remove(0);
    assert!(first.stop().success());
    let restarted = host.agent("n1", &fleet.url).spawn();
    restarted.wait_ready();
    fleet.until_ready(1).await;
}

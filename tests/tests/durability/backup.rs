//! Backup of a busy store, and restore.

#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::StreamExt;
use muster_grpc::certificate_request_service_client::CertificateRequestServiceClient;
use muster_grpc::disruption_budget_service_client::DisruptionBudgetServiceClient;
use muster_grpc::event_service_client::EventServiceClient;
use muster_grpc::join_service_client::JoinServiceClient;
use muster_grpc::join_token_service_client::JoinTokenServiceClient;
use muster_grpc::lease_service_client::LeaseServiceClient;
use muster_grpc::node_service_client::NodeServiceClient;
use muster_grpc::pod_service_client::PodServiceClient;
use muster_grpc::priority_class_service_client::PriorityClassServiceClient;
use muster_grpc::revocation_service_client::RevocationServiceClient;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_store_client::{Cache, StoreClient, StoreEndpoints, WatchOptions};
use muster_tests::join::{join_request, secret_token, token_for};
use muster_tests::store_process::write_log::{self, AckCounter, NAMESPACE, Writer};
use muster_tests::store_process::{SeededRandom, StoreLaunch, TIMEOUT, free_port, run, until};
use tokio::task::{JoinSet, block_in_place};
use tonic::transport::Channel;
use tonic::{Code, Status};

const MAX_MESSAGE: usize = 64 << 20;

/// All records of a store at one version.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Records {
    nodes: Vec<pb::Node>,
    leases: Vec<pb::Lease>,
    pods: Vec<pb::Pod>,
    budgets: Vec<pb::DisruptionBudget>,
    classes: Vec<pb::PriorityClass>,
    events: Vec<pb::Event>,
    tokens: Vec<pb::JoinToken>,
    requests: Vec<pb::CertificateRequest>,
    revocations: Vec<pb::Revocation>,
    pub(super) version: u64,
}

impl Records {
    /// The current records, or those at a version.
    pub(super) async fn read(channel: &Channel, at: Option<u64>) -> Records {
        let mut all = Records::default();
        macro_rules! list {
            ($into:ident, $client:ident, $list:ident($request:ident), $records:ident) => {{
                let mut client = $client::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE);
                let mut token = String::new();
                loop {
                    let mut request = pb::$request { page_token: token, ..Default::default() };
                    if let (Some(version), true) = (at, request.page_token.is_empty()) {
                        request.resource_version = version;
                        request.resource_version_match = "Exact".into();
                    }
                    let page = client.$list(request).await.unwrap().into_inner();
                    all.$into.extend(page.$records);
                    all.version = page.resource_version;
                    token = page.next_page_token;
                    if token.is_empty() {
                        break;
                    }
                }
            }};
        }
        list!(nodes, NodeServiceClient, list_nodes(ListNodesRequest), nodes);
        list!(leases, LeaseServiceClient, list_leases(ListLeasesRequest), leases);
        list!(pods, PodServiceClient, list_pods(ListPodsRequest), pods);
        list!(
            budgets,
            DisruptionBudgetServiceClient,
            list_disruption_budgets(ListDisruptionBudgetsRequest),
            disruption_budgets
        );
        list!(
            classes,
            PriorityClassServiceClient,
            list_priority_classes(ListPriorityClassesRequest),
            priority_classes
        );
        list!(events, EventServiceClient, list_events(ListEventsRequest), events);
        list!(tokens, JoinTokenServiceClient, list_join_tokens(ListJoinTokensRequest), join_tokens);
        list!(
            requests,
            CertificateRequestServiceClient,
            list_certificate_requests(ListCertificateRequestsRequest),
            certificate_requests
        );
        list!(revocations, RevocationServiceClient, list_revocations(ListRevocationsRequest), revocations);
        all
    }

    pub(super) fn count(&self) -> usize {
        self.nodes.len()
            + self.leases.len()
            + self.pods.len()
            + self.budgets.len()
            + self.classes.len()
            + self.events.len()
            + self.tokens.len()
            + self.requests.len()
            + self.revocations.len()
    }

    /// Uid and holder of each lease: these do not change with renewals.
    fn lease_identities(&self) -> BTreeMap<String, (String, String)> {
        let identity = |lease: &pb::Lease| {
            let metadata = lease.metadata.clone().unwrap_or_default();
            let holder = lease.spec.clone().unwrap_or_default().holder_identity;
            (format!("{}/{}", metadata.namespace, metadata.name), (metadata.uid, holder))
        };
        self.leases.iter().map(identity).collect()
    }

    fn lease_versions(&self) -> BTreeMap<String, u64> {
        let version = |lease: &pb::Lease| {
            let metadata = lease.metadata.clone().unwrap_or_default();
            (format!("{}/{}", metadata.namespace, metadata.name), metadata.resource_version)
        };
        self.leases.iter().map(version).collect()
    }
}

/// Creates records of every kind that no writer changes afterwards.
pub(super) async fn create_records(channel: &Channel) {
    let mut nodes = NodeServiceClient::new(channel.clone());
    for i in 0..600 {
        let node = Some(write_log::node(&format!("still-{i:03}"), "still"));
        nodes.create_node(pb::CreateNodeRequest { node }).await.unwrap();
    }
    let image = |i| pb::ContainerImage { names: vec![format!("{i:04}-{}", "x".repeat(995))], size_bytes: i };
    let status = pb::NodeStatus { images: (0..1000).map(image).collect(), ..Default::default() };
    let large = pb::Node { status: Some(status), ..write_log::node("large", "large") };
    let stored = nodes.create_node(pb::CreateNodeRequest { node: Some(large) }).await.unwrap().into_inner();
    let size = prost::Message::encoded_len(&stored.node.unwrap());
    assert!(size > 1_000_000, "{size}");

    let mut pods = PodServiceClient::new(channel.clone());
    for i in 0..20 {
        let mut pod = write_log::pod(&format!("still-{i}"), "still");
        pod.metadata.get_or_insert_default().labels.insert("app".into(), "web".into());
        pods.create_pod(pb::CreatePodRequest { pod: Some(pod) }).await.unwrap();
        let bind = pb::BindPodRequest {
            namespace: NAMESPACE.into(),
            name: format!("still-{i}"),
            node_name: format!("still-{i:03}"),
            preconditions: None,
        };
        pods.bind_pod(bind).await.unwrap();
    }
    let selector = pb::LabelSelector {
        match_labels: [("app".to_owned(), "web".to_owned())].into(),
        ..Default::default()
    };
    let spec = pb::DisruptionBudgetSpec {
        selector: Some(selector),
        min_available: "50%".into(),
        ..Default::default()
    };
    let metadata = Some(write_log::metadata("web", NAMESPACE, ""));
    let budget = pb::DisruptionBudget { metadata, spec: Some(spec), status: None };
    let request = pb::CreateDisruptionBudgetRequest { disruption_budget: Some(budget) };
    DisruptionBudgetServiceClient::new(channel.clone()).create_disruption_budget(request).await.unwrap();

    let metadata = Some(write_log::metadata("urgent", "", ""));
    let class = pb::PriorityClass { metadata, value: 1000, global_default: true, ..Default::default() };
    let request = pb::CreatePriorityClassRequest { priority_class: Some(class) };
    PriorityClassServiceClient::new(channel.clone()).create_priority_class(request).await.unwrap();

    let involved = pb::ObjectReference { kind: "Node".into(), name: "large".into(), ..Default::default() };
    let event = pb::Event {
        metadata: Some(write_log::metadata("", "default", "")),
        involved_object: Some(involved),
        reason: "Furnished".into(),
        message: "with everything".into(),
        source_component: "test".into(),
        ..Default::default()
    };
    let request = pb::RecordEventRequest { event: Some(event) };
    EventServiceClient::new(channel.clone()).record_event(request).await.unwrap();

    let secret = secret_token();
    let request = pb::CreateJoinTokenRequest { join_token: Some(token_for(&secret, "new", 2, 3600)) };
    JoinTokenServiceClient::new(channel.clone()).create_join_token(request).await.unwrap();
    let joining = join_request("new", &secret.reveal());
    JoinServiceClient::new(channel.clone()).join(joining).await.unwrap();
    let spec = pb::RevocationSpec { node_name: "lost".into(), ..Default::default() };
    let revocation = pb::Revocation { spec: Some(spec), ..Default::default() };
    let request = pb::CreateRevocationRequest { revocation: Some(revocation) };
    RevocationServiceClient::new(channel.clone()).create_revocation(request).await.unwrap();

    let mut leases = LeaseServiceClient::new(channel.clone());
    for i in 0..10 {
        let name = format!("still-{i}");
        let metadata = Some(write_log::metadata(&name, NAMESPACE, ""));
        let spec = Some(pb::LeaseSpec { holder_identity: "me".into(), ..Default::default() });
        let request = pb::CreateLeaseRequest { lease: Some(pb::Lease { metadata, spec }) };
        leases.create_lease(request).await.unwrap();
        for _ in 0..3 {
            let (namespace, name) = (NAMESPACE.to_owned(), name.clone());
            let request = pb::RenewLeaseRequest { namespace, name, holder_identity: "me".into() };
            leases.renew_lease(request).await.unwrap();
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs `muster-store restore`.
fn restore(file: &Path, data_dir: &Path) -> std::process::Output {
    run(&["restore".as_ref(), file.as_os_str(), "--data-dir".as_ref(), data_dir.as_os_str()])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_backup_of_a_busy_store_has_one_version_and_a_restored_store_continues_from_it() {
    let mut random = SeededRandom::seeded();
    let directory = tempfile::tempdir().unwrap();
    let (file, restored) = (directory.path().join("backup"), directory.path().join("restored"));
    let store = block_in_place(|| StoreLaunch::on(&directory.path().join("data")).start());
    let channel = store.channel();
    create_records(&channel).await;

    let acks = AckCounter::default();
    let mut busy = JoinSet::new();
    for mut writer in Writer::fleet(&mut random) {
        let (channel, acks) = (store.channel(), Arc::clone(&acks));
        busy.spawn(async move { writer.write_on(channel, &acks).await });
    }
    until("writers write", || acks.load(Ordering::Relaxed) > 100).await;
    let before = Records::read(&channel, None).await.lease_versions();
    let acknowledged = acks.load(Ordering::Relaxed);
    let url = store.url();
    let backup: [&OsStr; 4] = ["backup".as_ref(), file.as_os_str(), "--store".as_ref(), url.as_ref()];
    let done = block_in_place(|| run(&backup));
    let meanwhile = acks.load(Ordering::Relaxed) - acknowledged;
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(meanwhile > 0, "writers were active during the backup");
    let said = text(&done.stdout);
    let (_, rest) = said.split_once("resource version ").unwrap();
    let version: u64 = rest.split_whitespace().next().unwrap().parse().unwrap();
    let original = Records::read(&channel, Some(version)).await;
    let after = Records::read(&channel, None).await.lease_versions();
    block_in_place(|| store.kill());
    busy.join_all().await;

    let done = block_in_place(|| restore(&file, &restored));
    assert!(done.status.success(), "{}", text(&done.stderr));
    let launch = StoreLaunch::on(&restored);
    let store = block_in_place(|| launch.start());
    let channel = store.channel();
    let copy = Records::read(&channel, None).await;
    println!("{said}; {meanwhile} writes meanwhile; {} records restored at {}", copy.count(), copy.version);
    assert_eq!(copy.nodes, original.nodes);
    assert_eq!(copy.pods, original.pods);
    assert_eq!(copy.budgets, original.budgets);
    assert_eq!(copy.events, original.events);
    // Only the newest renewal is kept, so a lease may be newer than the version of the backup.
    assert_eq!(copy.lease_identities(), original.lease_identities());
    let versions = copy.lease_versions();
    for (name, version) in &versions {
        assert!(after.get(name).is_none_or(|after| version <= after), "{name}: {version}");
        assert!(!name.contains("/still-") || before.get(name) == Some(version), "{name} has changed");
    }
    let ahead = versions.values().filter(|renewed| **renewed > version).count();
    let newest = versions.values().copied().max().unwrap_or(0).max(version);
    assert!(copy.version >= newest, "the store is at {}, a lease at {newest}", copy.version);

    // New versions are higher, and new writes do not remove restored records.
    let mut nodes = NodeServiceClient::new(channel.clone());
    let mut last = newest;
    for i in 0..1000 {
        let node = Some(write_log::node(&format!("new-{i:04}"), "new"));
        let created = nodes.create_node(pb::CreateNodeRequest { node }).await.unwrap().into_inner().node;
        let version = created.unwrap().metadata.unwrap().resource_version;
        assert!(version > last, "{version} after {last}");
        last = version;
    }
    let lease = pb::RenewLeaseRequest {
        namespace: NAMESPACE.into(),
        name: "still-3".into(),
        holder_identity: "me".into(),
    };
    LeaseServiceClient::new(channel.clone()).renew_lease(lease).await.unwrap();
    let live = Records::read(&channel, None).await;
    block_in_place(|| store.kill());
    let store = block_in_place(|| launch.start());
    let reread = Records::read(&store.channel(), None).await;
    assert_eq!(reread, live);
    assert_eq!(reread.lease_identities(), copy.lease_identities());
    println!("{ahead} leases were renewed after the backup's version and before they were read");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_restore_from_a_damaged_backup_or_into_a_used_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (file, data) = (directory.path().join("backup"), directory.path().join("data"));
    let store = block_in_place(|| StoreLaunch::on(&data).start());
    create_records(&store.channel()).await;
    let url = store.url();
    let backup: [&OsStr; 4] = ["backup".as_ref(), file.as_os_str(), "--store".as_ref(), url.as_ref()];
    assert!(block_in_place(|| run(&backup)).status.success());

    // A store that cannot be reached: no file is created.
    let nowhere = directory.path().join("nowhere");
    let unreachable: [&OsStr; 4] =
        ["backup".as_ref(), nowhere.as_os_str(), "--store".as_ref(), "http://127.0.0.1:1".as_ref()];
    let refused = block_in_place(|| run(&unreachable));
    assert!(!refused.status.success());
    assert!(
        text(&refused.stderr).contains("http://127.0.0.1:1 cannot be reached"),
        "{}",
        text(&refused.stderr)
    );
    assert!(!nowhere.exists());

    let whole = fs::read(&file).unwrap();
    let new = directory.path().join("new");
    let damaged = directory.path().join("damaged");
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    for (content, expected) in [
        (&whole[..whole.len() - 1], "damaged or cut short"),
        (&whole[..whole.len() / 2], "damaged or cut short"),
        (&whole[..16], "damaged or cut short"),
        (&flipped, "damaged or cut short"),
        (b"", "is not a Muster backup"),
        (b"#!/bin/sh\necho hello\n", "is not a Muster backup"),
    ] {
        fs::write(&damaged, content).unwrap();
        let refused = block_in_place(|| restore(&damaged, &new));
        assert!(!refused.status.success(), "{} bytes", content.len());
        let said = text(&refused.stderr);
        assert!(said.contains(expected) && said.contains(&damaged.display().to_string()), "{said}");
        assert!(!new.exists(), "{} bytes left files behind", content.len());
    }

    // Into the directory of a running store: that store is not affected.
    let live = Records::read(&store.channel(), None).await;
    let refused = block_in_place(|| restore(&file, &data));
    assert!(!refused.status.success());
    assert!(text(&refused.stderr).contains(&format!("{} exists already", data.display())));
    assert_eq!(Records::read(&store.channel(), None).await, live);
    block_in_place(|| store.kill());
    let store = block_in_place(|| StoreLaunch::on(&data).start());
    assert_eq!(Records::read(&store.channel(), None).await, live);

    // Into a directory with other files.
    let foreign = directory.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("thesis.txt"), "irreplaceable").unwrap();
    let refused = block_in_place(|| restore(&file, &foreign));
    assert!(!refused.status.success());
    let left: Vec<_> = fs::read_dir(&foreign).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["thesis.txt"]);

    // A good backup into an empty directory. This may be the mount point of a volume with the remains of an earlier
    // restore: the directory is not replaced, and no file is created beside it.
    let volume = directory.path().join("mnt");
    let new = volume.join("new");
    fs::create_dir_all(new.join("lost+found")).unwrap();
    fs::create_dir(new.join("restoring")).unwrap();
    fs::write(new.join("restoring/db"), "half of it").unwrap();
    let inode = fs::metadata(&new).unwrap().ino();
    let done = block_in_place(|| restore(&file, &new));
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(fs::metadata(&new).unwrap().ino(), inode, "the directory was replaced");
    assert_eq!(fs::read_dir(&volume).unwrap().count(), 1, "a file was created beside it");
    assert!(!new.join("restoring").exists());
    let copy = block_in_place(|| StoreLaunch::on(&new).start());
    let copied = Records::read(&copy.channel(), None).await;
    // Far above the backup's version, so that a watcher of the old store cannot take new changes for old ones.
    assert!(copied.version > live.version);
    assert!(Records { version: live.version, ..copied } == live, "the copy is not what was backed up");
}

async fn create_node(channel: &Channel, name: &str) -> u64 {
    let node = Some(write_log::node(name, name));
    let created = NodeServiceClient::new(channel.clone()).create_node(pb::CreateNodeRequest { node }).await;
    created.unwrap().into_inner().node.unwrap().metadata.unwrap().resource_version
}

/// The id in the metadata of the store's responses.
async fn store_id(channel: &Channel) -> String {
    let request = pb::ListNodesRequest { page_size: 1, ..Default::default() };
    let listed = NodeServiceClient::new(channel.clone()).list_nodes(request).await.unwrap();
    listed.metadata().get("muster-store-id").unwrap().to_str().unwrap().to_owned()
}

/// The error of a watch of nodes after a version.
async fn refused_watch(channel: &Channel, version: u64) -> Status {
    let request = pb::WatchNodesRequest { resource_version: version, ..Default::default() };
    let watch = NodeServiceClient::new(channel.clone()).watch_nodes(request).await;
    watch.map(|_| ()).expect_err("a watch from another history is refused")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_restores_of_one_backup_share_no_versions_and_a_follower_of_the_one_lists_the_other() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("backup");
    let store = block_in_place(|| StoreLaunch::on(&directory.path().join("data")).start());
    let backed_up = create_node(&store.channel(), "both").await;
    let id = store_id(&store.channel()).await;
    assert!(store.log().contains(&format!("store_id=\"{id}\"")), "{}", store.log());
    let url = store.url();
    let backup: [&OsStr; 4] = ["backup".as_ref(), file.as_os_str(), "--store".as_ref(), url.as_ref()];
    assert!(block_in_place(|| run(&backup)).status.success());
    block_in_place(|| store.kill());

    let port = free_port();
    let launches = ["one", "two"].map(|name| {
        let data = directory.path().join(name);
        let done = block_in_place(|| restore(&file, &data));
        assert!(done.status.success(), "{}", text(&done.stderr));
        StoreLaunch::on(&data).at(port)
    });
    let [one, two] = &launches;
    for launch in &launches {
        let store = block_in_place(|| launch.start());
        assert_eq!(store_id(&store.channel()).await, id, "a restored store keeps the id of its backup");
        block_in_place(|| store.kill());
    }
    let store = block_in_place(|| one.start());
    let version_of_one = create_node(&store.channel(), "only-in-one").await;
    let endpoints = StoreEndpoints::new([store.url()]);
    let mut watch = StoreClient::connect(endpoints).unwrap().watch::<Node>(WatchOptions::default());
    let mut cache = Cache::<Node>::new();
    let names = |cache: &Cache<Node>| cache.iter().map(|node| node.meta.name.to_string()).collect::<Vec<_>>();
    let mut follow = async |expected: &[&str]| {
        let following = async {
            while !cache.is_synced() || names(&cache) != expected {
                cache.observe(watch.next().await.expect("a watch does not end"));
            }
        };
        let followed = tokio::time::timeout(TIMEOUT, following).await;
        assert!(followed.is_ok(), "the follower has {:?} and not {expected:?}", names(&cache));
    };
    follow(&["both", "only-in-one"]).await;
    block_in_place(|| store.kill());

    // The second one writes as much as the first, so that its versions would be the same without a random jump.
    let store = block_in_place(|| two.start());
    let channel = store.channel();
    let version_of_two = create_node(&channel, "only-in-two").await;
    assert!(version_of_one.abs_diff(version_of_two) > 1_000, "{version_of_one}, {version_of_two}");
    assert!(version_of_one.min(version_of_two) > backed_up + (1 << 32));
    follow(&["both", "only-in-two"]).await;
    assert_eq!(refused_watch(&channel, version_of_one).await.code(), Code::OutOfRange);
    block_in_place(|| store.kill());

    // One of the two versions is ahead of the other store, and one is behind.
    let store = block_in_place(|| one.start());
    let refused = refused_watch(&store.channel(), version_of_two).await;
    assert_eq!(refused.code(), Code::OutOfRange, "{refused:?}");
    follow(&["both", "only-in-one"]).await;
}

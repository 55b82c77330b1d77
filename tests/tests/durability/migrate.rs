//! `muster-store migrate` between a data directory and a real etcd, both ways.

#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use muster_etcd::requests::get;
use muster_etcd::{Client, TlsFiles};
use muster_grpc::lease_service_client::LeaseServiceClient;
use muster_grpc::node_service_client::NodeServiceClient;
use muster_proto::pb;
use muster_tests::etcd::Etcd;
use muster_tests::store_process::write_log::{NAMESPACE, Writer, node};
use muster_tests::store_process::{SeededRandom, StoreLaunch, StoreProcess, TIMEOUT, binary};
use muster_tests::{WatchQuery, eventually, fixtures};
use rustix::process::Signal;
use tokio::task::block_in_place;
use tonic::Code;
use tonic::transport::Channel;

use super::backup::{Records, create_records};

/// How often a migration is killed in each direction.
const KILLS: usize = 6;

/// `muster-store migrate`, on this etcd.
fn migrate(from: &str, to: &str, etcd: &Etcd) -> Command {
    let mut command = Command::new(binary());
    command.args(["migrate", "--from", from, "--to", to, "--etcd-endpoints", &etcd.url()]);
    command.stdin(Stdio::null());
    command
}

/// Runs it; what it printed, or its error.
fn migrated(from: &str, to: &str, etcd: &Etcd) -> Result<String, String> {
    let done = block_in_place(|| migrate(from, to, etcd).output()).unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if done.status.success() { Ok(text(&done.stdout)) } else { Err(text(&done.stderr)) }
}

fn on_etcd(directory: &Path, etcd: &Etcd) -> StoreLaunch {
    StoreLaunch::on(directory).flag("--engine", "etcd").flag("--etcd-endpoints", &etcd.url())
}

fn stop(mut store: StoreProcess) {
    store.signal(Signal::TERM);
    let status = block_in_place(|| store.wait());
    assert_eq!(status.code(), Some(0), "{}", store.log());
}

/// All records. The version of the whole is not part of what is moved.
async fn records(channel: &Channel) -> (Records, u64) {
    let mut all = Records::read(channel, None).await;
    let version = std::mem::take(&mut all.version);
    (all, version)
}

async fn fill(channel: &Channel, random: &mut SeededRandom) {
    create_records(channel).await;
    for mut writer in Writer::fleet(random) {
        writer.write(channel.clone(), 3).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn s242_a_store_moves_into_etcd_and_back_with_every_record_as_it_was() {
    let mut random = SeededRandom::seeded();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let text = |name: &str| path(name).to_str().unwrap().to_owned();
    let etcd = Etcd::start(&path("etcd")).await;
    let store = block_in_place(|| StoreLaunch::on(&path("data")).start());
    fill(&store.channel(), &mut random).await;
    let (original, version) = records(&store.channel()).await;
    block_in_place(|| store.kill());

    let said = migrated(&text("data"), "etcd", &etcd).unwrap();
    assert!(said.contains(&format!("{} records are in etcd below /muster", original.count())), "{said}");
    let store = block_in_place(|| on_etcd(&path("none"), &etcd).start());
    let (moved, later) = records(&store.channel()).await;
    assert_eq!(moved, original);
    assert!(later > version, "it continues at {later}, and was at {version}");
    let api = store.api();
    let query = WatchQuery { version, ..Default::default() };
    api.expect_error(api.watch::<pb::Node>(query)).await.is(Code::OutOfRange, "EXPIRED");
    fill_more(&store.channel()).await;
    let (changed, version) = records(&store.channel()).await;
    assert_ne!(changed, original);
    stop(store);

    let said = migrated("etcd", &text("back"), &etcd).unwrap();
    assert!(said.contains(&format!("{} records are in {}", changed.count(), text("back"))), "{said}");
    let store = block_in_place(|| StoreLaunch::on(&path("back")).start());
    let (back, later) = records(&store.channel()).await;
    assert_eq!(back, changed);
    assert!(later > version, "it continues at {later}, and was at {version}");
    fill_more(&store.channel()).await;
}

/// Writes, renews and deletes records that were moved.
async fn fill_more(channel: &Channel) {
    let mut nodes = NodeServiceClient::new(channel.clone());
    let update = pb::UpdateNodeRequest { node: Some(node("still-100", "moved")) };
    let before = nodes.get_node(pb::GetNodeRequest { name: "still-100".into() }).await.unwrap().into_inner();
    let after = nodes.update_node(update).await.unwrap().into_inner();
    let uid = |node: Option<pb::Node>| node.unwrap().metadata.unwrap().uid;
    assert_eq!(uid(before.node), uid(after.node));
    let name = nodes.list_nodes(pb::ListNodesRequest::default()).await.unwrap().into_inner().nodes;
    let name =
        name.iter().map(|node| node.metadata.clone().unwrap().name).find(|name| name.starts_with("still-5"));
    let gone = pb::DeleteNodeRequest { name: name.unwrap(), preconditions: None };
    nodes.delete_node(gone).await.unwrap();
    let (namespace, name) = (NAMESPACE.to_owned(), "still-3".to_owned());
    let renewal = pb::RenewLeaseRequest { namespace, name, holder_identity: "me".into() };
    LeaseServiceClient::new(channel.clone()).renew_lease(renewal).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn s243_a_migration_needs_a_source_that_nobody_uses_and_an_empty_target() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let text = |name: &str| path(name).to_str().unwrap().to_owned();
    let etcd = Etcd::start(&path("etcd")).await;
    let refused = |from: &str, to: &str| migrated(from, to, &etcd).expect_err("it is refused");
    assert!(refused("etcd", "etcd").contains("one of them must be `etcd`"));
    assert!(refused(&text("a"), &text("b")).contains("one of them must be `etcd`"));
    assert!(refused("etcd", &text("new")).contains("there is no store below /muster"));
    assert!(!path("new").exists(), "nothing was written");
    assert!(refused(&text("absent"), "etcd").contains("holds no store"));
    std::fs::create_dir(path("empty")).unwrap();
    let said = refused(&text("empty"), "etcd");
    assert!(said.contains("older format") || said.contains("holds no store"), "{said}");

    let store = block_in_place(|| StoreLaunch::on(&path("data")).start());
    store.api().create(fixtures::node("n")).await.unwrap();
    let said = refused(&text("data"), "etcd");
    assert!(said.contains(&format!("{} is in use", text("data"))), "{said}");
    stop(store);
    etcd.put("/muster/somebody").await;
    let said = refused(&text("data"), "etcd");
    assert!(said.contains("/muster/somebody"), "{said}");

    let other = Etcd::start(&path("other")).await;
    migrated(&text("data"), "etcd", &other).unwrap();
    let said = migrated(&text("data"), "etcd", &other).expect_err("there is one already");
    assert!(said.contains("there is a store below /muster in etcd already"), "{said}");
    let said = migrated("etcd", &text("data"), &other).expect_err("the directory is the source's");
    assert!(said.contains("is not empty"), "{said}");
    let store = block_in_place(|| on_etcd(&path("none"), &other).start());
    let said = migrated("etcd", &text("back"), &other).expect_err("a store leads");
    assert!(said.contains("is in use: 127.0.0.1:") && said.contains("stop all stores first"), "{said}");
    assert!(store.api().get::<pb::Node>("n").await.is_ok(), "it is not disturbed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn s244_a_migration_that_is_killed_counts_for_nothing_and_can_be_done_again() {
    let mut random = SeededRandom::seeded();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let text = |name: &str| path(name).to_str().unwrap().to_owned();
    let etcd = Etcd::start(&path("etcd")).await;
    let client = Client::new(&[etcd.url()], &TlsFiles::default()).unwrap();
    let store = block_in_place(|| StoreLaunch::on(&path("data")).start());
    fill(&store.channel(), &mut random).await;
    let (original, _) = records(&store.channel()).await;
    block_in_place(|| store.kill());

    let mut unfinished = 0;
    let (began, mut is_done) = (Instant::now(), false);
    for kill in 0..KILLS {
        killed(migrate(&text("data"), "etcd", &etcd), &mut random, kill);
        // The key that it held goes with its lease.
        eventually(TIMEOUT, "nobody leads", || async { (!exists(&client, "leader").await).then_some(()) })
            .await;
        if exists(&client, "format").await {
            is_done = true;
            break;
        }
        if exists(&client, "migration").await {
            unfinished += 1;
            let (status, log) = block_in_place(|| on_etcd(&path("none"), &etcd).run_to_exit());
            assert!(!status.success() && log.contains("is being moved to /muster"), "{log}");
        }
    }
    if !is_done {
        migrated(&text("data"), "etcd", &etcd).unwrap();
    }
    let store = block_in_place(|| on_etcd(&path("none"), &etcd).start());
    assert_eq!(records(&store.channel()).await.0, original);
    stop(store);

    for kill in 0..KILLS {
        killed(migrate("etcd", &text("back"), &etcd), &mut random, kill);
        eventually(TIMEOUT, "nobody leads", || async { (!exists(&client, "leader").await).then_some(()) })
            .await;
        if path("back").join("MUSTER_FORMAT").exists() {
            break;
        }
        if path("back").join("migrating").exists() {
            unfinished += 1;
            let (status, log) = block_in_place(|| StoreLaunch::on(&path("back")).run_to_exit());
            assert!(!status.success() && log.contains("holds files but no MUSTER_FORMAT"), "{log}");
        }
    }
    if !path("back").join("MUSTER_FORMAT").exists() {
        migrated("etcd", &text("back"), &etcd).unwrap();
    }
    let store = block_in_place(|| StoreLaunch::on(&path("back")).start());
    assert_eq!(records(&store.channel()).await.0, original);
    println!("{unfinished} were killed in the middle, in {:?}", began.elapsed());
}

/// Runs a command and kills it after a while, which is longer each time.
fn killed(mut command: Command, random: &mut SeededRandom, kill: usize) {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(random.below(60 * (1 + kill as u64))));
    let _ = child.kill();
    child.wait().unwrap();
}

async fn exists(etcd: &Client, key: &str) -> bool {
    let found = etcd.range(get(format!("/muster/{key}")), Duration::from_secs(5)).await;
    !found.unwrap().kvs.is_empty()
}

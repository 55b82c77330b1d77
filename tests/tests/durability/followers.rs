//! Two stores on one etcd: the one that follows serves like the one that leads.

#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;

use muster_proto::identity::ServerRole;
use muster_proto::pb;
use muster_proto::pb::heartbeat_request::Message;
use muster_tests::api::Api;
use muster_tests::audit_log::AuditLog;
use muster_tests::certificate_authority::Authority;
use muster_tests::fixtures;
use muster_tests::http;
use muster_tests::resource::{ListQuery, WatchQuery};
use muster_tests::rpc_error::RpcError;
use muster_tests::store_process::{StoreProcess, until};
use muster_tests::{TIMEOUT, eventually};
use rustix::process::{Signal, kill_process};
use tonic::Code;

use super::replicas::{Replicas, suspend};

fn renewal() -> Message {
    Message::Renewal(pb::HeartbeatRenewal { status_digest: 1, status_age_millis: 0 })
}

fn version(node: &pb::Node) -> u64 {
    node.metadata.as_ref().unwrap().resource_version
}

/// The names of all nodes.
async fn names(api: &Api, query: ListQuery) -> Vec<String> {
    let page = api.list::<pb::Node>(query).await.unwrap();
    page.records.into_iter().map(|node| node.metadata.unwrap().name).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn s230_all_stores_have_the_same_revisions_and_a_watch_resumes_at_another_one() {
    let replicas = Replicas::start().await;
    let leader = replicas.leader().await;
    let apis = [leader, 1 - leader].map(|index| replicas.at(index).api());
    let [mut at_leader, mut at_follower] = [
        apis[0].watch::<pb::Node>(WatchQuery::default()).await.unwrap(),
        apis[1].watch(WatchQuery::default()).await.unwrap(),
    ];
    for number in 0..20 {
        // Written here and there.
        let node = apis[number % 2].create(fixtures::node(&format!("n{number}"))).await.unwrap();
        assert_eq!(version(&node), number as u64 + 1, "one history");
    }
    let seen = at_leader.summaries(20).await;
    assert_eq!(at_follower.summaries(20).await, seen);
    for (count, (cut, api)) in [(3_u64, &apis[1]), (11, &apis[0]), (20, &apis[1])].into_iter().enumerate() {
        let query = WatchQuery { version: cut, ..WatchQuery::default() };
        let mut resumed = api.watch::<pb::Node>(query).await.unwrap();
        let rest = resumed.summaries(20 - cut as usize).await;
        assert_eq!(rest, seen[cut as usize..], "after {cut}");
        resumed.take(count).await;
        let next = format!("after-{cut}");
        apis[0].create(fixtures::node(&next)).await.unwrap();
        assert!(resumed.next().await.summary().contains(&next), "and it goes on");
    }
    for api in &apis {
        let past = ListQuery { version: 7, version_match: "Exact", ..ListQuery::default() };
        assert_eq!(names(api, past).await.len(), 7, "a list of the past");
        assert_eq!(names(api, ListQuery::default()).await.len(), 23);
    }
    // A list that is continued at another store.
    let page = ListQuery { page_size: 10, ..ListQuery::default() };
    let first = apis[0].list::<pb::Node>(page.clone()).await.unwrap();
    let second = ListQuery { page_token: first.next, ..page };
    assert_eq!(names(&apis[1], second).await.len(), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn s231_what_was_acknowledged_anywhere_is_in_the_next_read_everywhere() {
    let replicas = Replicas::start().await;
    let leader = replicas.leader().await;
    let apis = [leader, 1 - leader].map(|index| replicas.at(index).api());
    let mut last = apis[0].create(fixtures::node("n")).await.unwrap();
    for round in 0..200 {
        let (writer, reader) = (&apis[round % 2], &apis[round / 2 % 2]);
        last.metadata.as_mut().unwrap().labels.insert("round".to_owned(), round.to_string());
        last = writer.update(last).await.unwrap();
        let (one, all) =
            tokio::join!(reader.get::<pb::Node>("n"), reader.list::<pb::Node>(ListQuery::default()));
        assert_eq!(version(&one.unwrap()), version(&last), "round {round}");
        assert_eq!(version(&all.unwrap().records[0]), version(&last), "round {round}");
    }
    // Refusals of the leader come through with their details.
    let stale = pb::Node {
        metadata: Some(pb::Metadata { resource_version: 1, ..last.metadata.clone().unwrap() }),
        ..last
    };
    let refused = RpcError::from(&apis[1].update(stale).await.unwrap_err());
    assert_eq!((refused.code, &*refused.reason), (Code::Aborted, "CONFLICT"), "{refused:?}");
    assert_eq!(replicas.at(1 - leader).metric("muster_store_leader"), 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn s232_a_leader_that_is_killed_interrupts_no_watch_and_no_read_at_the_other_store() {
    let mut replicas = Replicas::start().await;
    let old = replicas.leader().await;
    let api = replicas.at(1 - old).api();
    let mut watch = api.watch::<pb::Node>(WatchQuery::default()).await.unwrap();
    let mut agent = api.agent("a").await;
    agent.send(renewal()).await.unwrap();
    replicas.kill(old);
    assert!(api.get::<pb::Node>("a").await.is_ok(), "reads need no leader");
    // The stream led to the store that is gone; the agent opens another one.
    assert_eq!(agent.end().await.code, Code::Unavailable);
    // It waits until a store leads: nothing of it is sent before.
    let created = api.create(fixtures::node("n")).await.unwrap();
    api.agent("b").await.send(renewal()).await.unwrap();
    assert_eq!(watch.next().await.record.metadata.unwrap().name, "a");
    let next = watch.next().await;
    assert_eq!(
        (next.record.metadata.as_ref().unwrap().name.as_str(), version(&next.record)),
        ("n", version(&created))
    );
    let log = replicas.at(1 - old).log();
    assert_eq!(log.matches("has loaded the records").count(), 1, "it had everything in memory");
    replicas.start_again(old);
    let other = replicas.at(old).api();
    assert_eq!(version(&other.get::<pb::Node>("n").await.unwrap()), version(&created));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn s233_a_leader_that_stops_hands_over_and_refuses_no_write_of_the_other_store() {
    let mut replicas = Replicas::start().await;
    for round in 0..4 {
        let old = replicas.leader().await;
        let api = replicas.at(1 - old).api();
        let since = api.revision().await;
        let mut watch =
            api.watch::<pb::Node>(WatchQuery { version: since, ..WatchQuery::default() }).await.unwrap();
        let writer = api.clone();
        let writing = tokio::spawn(async move {
            let mut versions = Vec::new();
            for number in 0..150 {
                let node = writer.create(fixtures::node(&format!("n-{round}-{number}"))).await;
                versions.push(node.map(|node| version(&node)));
            }
            versions
        });
        // While it writes.
        let mut seen = watch.take(20).await;
        replicas.stop(old);
        let versions = writing.await.unwrap();
        let failed: Vec<_> = versions.iter().filter_map(|it| it.as_ref().err()).collect();
        assert!(failed.is_empty(), "{failed:?}");
        seen.extend(watch.take(130).await);
        let seen: Vec<_> = seen.iter().map(|event| version(&event.record)).collect();
        let acknowledged: Vec<_> = versions.into_iter().map(Result::unwrap).collect();
        assert_eq!(
            (seen, since + 1..=since + 150),
            (acknowledged.clone(), acknowledged[0]..=acknowledged[149])
        );
        replicas.leader_among(&[1 - old]).await;
        replicas.start_again(old);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn s234_without_etcd_no_store_shows_what_may_be_out_of_date() {
    let replicas = Replicas::start().await;
    let leader = replicas.leader().await;
    let stores: [&StoreProcess; 2] = [replicas.at(leader), replicas.at(1 - leader)];
    stores[0].api().create(fixtures::node("n")).await.unwrap();
    suspend(replicas.etcd.pid()).await;
    for store in stores {
        let refused = RpcError::from(&store.api().get::<pb::Node>("n").await.unwrap_err());
        assert_eq!(
            (refused.code, &*refused.reason),
            (Code::Unavailable, "READ_NOT_CONFIRMED"),
            "{refused:?}"
        );
        assert!(refused.retry_after.is_some(), "{refused:?}");
        let past = ListQuery { version: 1, version_match: "Exact", ..ListQuery::default() };
        assert_eq!(names(&store.api(), past).await, ["n"], "the past does not change");
    }
    let says = |text: String| text.contains("records: etcd's watch cannot be followed");
    until("the follower says so", || http::get(stores[1].http_address(), "/readyz").is_some_and(says)).await;
    kill_process(replicas.etcd.pid(), Signal::CONT).unwrap();
    for store in stores {
        until("it is ready again", || {
            http::get(store.http_address(), "/readyz").is_some_and(|text| !text.contains("records:"))
        })
        .await;
    }
    // etcd may find only now that the leader's lease has ended, so that a write under way has no answer.
    let attempts = std::cell::Cell::new(0);
    let after = eventually(TIMEOUT, "a write", || async {
        attempts.set(attempts.get() + 1);
        let name = format!("after-{}", attempts.get());
        match stores[1].api().create(fixtures::node(&name)).await {
            Ok(_) => Some(name),
            Err(status) => {
                assert_eq!(status.code(), Code::Unavailable, "{status:?}");
                println!("a write at {name}: {:?}", RpcError::from(&status));
                None
            }
        }
    });
    let after = after.await;
    for store in stores {
        assert!(store.api().get::<pb::Node>(&after).await.is_ok());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn s235_a_follower_vouches_for_its_callers_and_nobody_else_may() {
    let authority = Authority::new();
    let secured = |directory: &Path, launch: muster_tests::store_process::StoreLaunch| {
        let [cert, key] = authority.issue("store", "muster:stores");
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let port = launch.port();
        launch
            .flag("--tls-cert", &path(&cert))
            .flag("--tls-key", &path(&key))
            .flag("--tls-client-ca", &path(&authority.own()))
            .flag("--advertise", &format!("localhost:{port}"))
            .flag("--audit-log", &path(&directory.with_extension("audit.log")))
    };
    let replicas = Replicas::start_with(secured).await;
    let leader = replicas.leader().await;
    let connect = async |index: usize, name: &str, organization: &str| {
        let url = format!("https://localhost:{}", replicas.at(index).grpc_address().port());
        let target = authority.client(name, organization).target(&url, ServerRole::Store).unwrap();
        Api::of(target.connect().await.unwrap())
    };
    let follower = 1 - leader;
    let log = AuditLog::at(&replicas.directory(leader).with_extension("audit.log"));

    let node = connect(follower, "node:a", "muster:nodes").await;
    node.create(fixtures::node("a")).await.unwrap();
    let line = log.expect("the creation", |line| line["name"] == "a" && line["verb"] == "create").await;
    assert_eq!((&line["caller"], &line["via"]), (&"node:a".into(), &"store".into()), "{line}");
    assert_eq!(line["subject"], "CN=node:a, O=muster:nodes", "{line}");
    assert_eq!(line["revision"], 1, "{line}");
    let denied = node.create(fixtures::node("b")).await.unwrap_err();
    assert_eq!(
        denied.code(),
        Code::PermissionDenied,
        "it has its own rights, and not the store's: {denied:?}"
    );
    log.expect("the denial", |line| line["code"] == "PermissionDenied" && line["via"] == "store").await;

    // No other caller may name another one, at any store.
    for index in [leader, follower] {
        for (name, organization) in [("node:a", "muster:nodes"), ("eva", "muster:admins")] {
            let channel = connect(index, name, organization).await.channel();
            let mut client = muster_grpc::node_service_client::NodeServiceClient::new(channel);
            let mut request = tonic::Request::new(pb::GetNodeRequest { name: "a".to_owned() });
            request.metadata_mut().insert("muster-forwarded-for", "127.0.0.1:1".parse().unwrap());
            let refused = client.get_node(request).await.unwrap_err();
            assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
            assert!(refused.message().contains("only a store may name another caller"), "{refused:?}");
        }
    }
}

//! The log of decisions: who may record, in which order, and what survives a store that is killed.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use muster_proto::fence::Fence;
use muster_proto::key::Key;
use muster_proto::lease::Lease;
use muster_proto::pb;
use muster_store_client::{ClientError, StoreClient, StoreEndpoints};
use muster_tests::fixtures::*;
use muster_tests::store_process::{StoreLaunch, StoreProcess};
use muster_tests::{TestStore, in_time, now_seconds};
use tonic::Code;

fn decision(id: u64, leader: &str) -> pb::Decision {
    pb::Decision {
        id,
        time: Some(prost_types::Timestamp { seconds: now_seconds(), nanos: 0 }),
        leader: leader.to_owned(),
        subject: Some(pb::DecisionSubject {
            kind: pb::DecisionSubjectKind::Node.into(),
            name: format!("n{}", id % 3),
            ..Default::default()
        }),
        node: format!("n{}", id % 3),
        rule: "node-ready".to_owned(),
        reason: "why".to_owned(),
        ..Default::default()
    }
}

fn batch(ids: std::ops::RangeInclusive<u64>) -> Vec<pb::Decision> {
    ids.map(|id| decision(id, "a")).collect()
}

async fn ids(client: &StoreClient, filter: pb::DecisionFilter) -> Vec<u64> {
    let (mut all, mut request) =
        (Vec::new(), pb::ListDecisionsRequest { filter: Some(filter), ..Default::default() });
    loop {
        let page = client.list_decisions(request.clone()).await.unwrap();
        all.extend(page.decisions.iter().map(|decision| decision.id));
        if page.next_page_token.is_empty() {
            return all;
        }
        request.page_token = page.next_page_token;
    }
}

/// Makes `holder` the holder of the lease that the fence names.
async fn elect(client: &StoreClient, fence: &Fence) {
    let key = Key::namespaced(fence.namespace().clone(), fence.name().clone());
    let held = client.get::<Lease>(&key).await;
    let mut wanted = match held {
        Ok(lease) => lease,
        Err(_) => Lease::try_from(lease("ctl").in_namespace("kube-system")).unwrap(),
    };
    wanted.spec.holder_identity = fence.holder().to_owned();
    wanted.spec.lease_transitions = fence.transitions();
    client.update(wanted).await.unwrap();
}

#[tokio::test]
async fn s259_only_the_leader_records_decisions_and_only_in_order() {
    let store = TestStore::start().await;
    let client = store.client();
    let fence = |holder, transitions| {
        Fence::new("kube-system".parse().unwrap(), "ctl".parse().unwrap(), holder, transitions).unwrap()
    };
    elect(&client, &fence("a", 0)).await;
    let leader = client.with_fence(Some(&fence("a", 0)));
    assert_eq!(leader.record_decisions(batch(1..=3)).await.unwrap(), 3);
    assert_eq!(leader.record_decisions(batch(2..=4)).await.unwrap(), 4, "a batch may be sent again");
    elect(&client, &fence("b", 1)).await;
    let fenced = leader.record_decisions(batch(5..=5)).await.unwrap_err();
    assert!(matches!(fenced, ClientError::Fenced(_)), "{fenced}");
    let next = client.with_fence(Some(&fence("b", 1)));
    let gap = next.record_decisions(vec![decision(9, "b")]).await.unwrap_err();
    assert!(matches!(&gap, ClientError::Other(status) if status.code() == Code::FailedPrecondition), "{gap}");
    assert_eq!(next.record_decisions(vec![decision(5, "b")]).await.unwrap(), 5);
    let invalid = next.record_decisions(vec![pb::Decision { rule: String::new(), ..decision(6, "b") }]).await;
    assert!(invalid.unwrap_err().to_string().contains("decisions[0].rule"), "the field is named");
    assert_eq!(ids(&client, pb::DecisionFilter::default()).await, [5, 4, 3, 2, 1]);
    let of_node = pb::DecisionFilter { node: "n1".to_owned(), ..Default::default() };
    assert_eq!(ids(&client, of_node).await, [4, 1]);
    let too_many = pb::ListDecisionsRequest { page_size: 1001, ..Default::default() };
    assert!(client.list_decisions(too_many).await.unwrap_err().to_string().contains("pageSize"));
}

#[tokio::test]
async fn a_watch_of_decisions_resumes_after_what_it_had() {
    let store = TestStore::start().await;
    let client = store.client();
    client.record_decisions(batch(1..=3)).await.unwrap();
    let watch = |after_id| pb::WatchDecisionsRequest { after_id, ..Default::default() };
    let mut stream = client.watch_decisions(watch(Some(1))).await.unwrap();
    let message = in_time("the first message", stream.message()).await.unwrap().unwrap();
    let seen: Vec<u64> = message.decisions.iter().map(|decision| decision.id).collect();
    assert_eq!((seen, message.last_id), (vec![2, 3], 3));
    client.record_decisions(batch(4..=5)).await.unwrap();
    let message = in_time("the next message", stream.message()).await.unwrap().unwrap();
    assert_eq!(message.last_id, 5);
    let mut only_new = client.watch_decisions(watch(None)).await.unwrap();
    let message = in_time("where it begins", only_new.message()).await.unwrap().unwrap();
    assert_eq!((message.decisions.len(), message.last_id), (0, 5));
    client.record_decisions(batch(6..=6)).await.unwrap();
    let message = in_time("the new one", only_new.message()).await.unwrap().unwrap();
    assert_eq!(message.decisions[0].id, 6);
    let ahead = client.watch_decisions(watch(Some(100))).await.expect_err("there are no such decisions");
    assert!(matches!(ahead, ClientError::Expired(_)), "{ahead}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s258_a_store_that_is_killed_has_every_decision_that_it_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let client = |store: &StoreProcess| StoreClient::connect(StoreEndpoints::new([store.url()])).unwrap();
    let mut acknowledged = 0;
    for round in 1..=3_u64 {
        let store = StoreLaunch::on(directory.path()).start();
        let client = client(&store);
        let kept = ids(&client, pb::DecisionFilter::default()).await;
        let newest = kept.first().copied().unwrap_or(0);
        assert!(newest >= acknowledged, "round {round}: {newest} of {acknowledged}");
        assert_eq!(kept, (1..=newest).rev().collect::<Vec<u64>>(), "round {round}: nothing is missing");
        acknowledged = newest;
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        let writing = tokio::spawn(async move {
            let mut next = newest + 1;
            while let Ok(last_id) = client.record_decisions(batch(next..=next + 6)).await {
                next = last_id + 1;
                if sender.send(last_id).is_err() {
                    return;
                }
            }
        });
        for _ in 0..20 {
            acknowledged = in_time("an acknowledgement", receiver.recv()).await.expect("it records");
        }
        store.kill();
        while let Some(last_id) = receiver.recv().await {
            acknowledged = last_id;
        }
        writing.await.unwrap();
    }
}

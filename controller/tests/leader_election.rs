//! Candidates for the controller's lease, against a real store.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::sync::Arc;
use std::time::Duration;

use muster_controller::leader_election::{ElectionSettings, Elector, Leadership};
use muster_proto::event::{Event, EventType, ObjectReference};
use muster_proto::fence::Fence;
use muster_proto::lease::Lease;
use muster_proto::pb;
use muster_rpc::clock::SystemClock;
use muster_rpc::config::parse_with_config;
use muster_rpc::shutdown::Shutdown;
use muster_store::run::Running;
use muster_store_client::{ClientError, DeleteOptions, StoreClient, StoreEndpoints};

/// Longer than any condition here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Nothing expires while a test runs.
const NEVER: [Duration; 3] =
    [Duration::from_secs(3600), Duration::from_secs(1800), Duration::from_millis(50)];
/// A lease that is not renewed expires soon.
const SOON: [Duration; 3] = [Duration::from_secs(2), Duration::from_secs(1), Duration::from_millis(50)];

/// A store in this process.
struct Harness {
    client: StoreClient,
    store: Running,
    shutdown: Shutdown,
    _files: tempfile::TempDir,
}

impl Harness {
    async fn start() -> Harness {
        let files = tempfile::tempdir().unwrap();
        let data = format!("--data-dir={}", files.path().join("store").display());
        let args = ["muster-store", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", &data];
        let parsed: muster_store::config::Flags = parse_with_config(args).unwrap();
        let shutdown = Shutdown::new();
        let store = muster_store::run::start((&parsed).try_into().unwrap(), shutdown.clone()).await.unwrap();
        let client =
            StoreClient::connect(StoreEndpoints::new([format!("http://{}", store.address)])).unwrap();
        Harness { client, store, shutdown, _files: files }
    }

    /// A connection that belongs to the runtime of the caller.
    fn connect(&self) -> StoreClient {
        StoreClient::connect(StoreEndpoints::new([format!("http://{}", self.store.address)])).unwrap()
    }

    fn compete(
        &self,
        identity: &str,
        [lease_duration, renew_deadline, retry_period]: [Duration; 3],
    ) -> Candidate {
        let settings = ElectionSettings {
            lease_duration,
            renew_deadline,
            retry_period,
            ..ElectionSettings::new(identity)
        };
        let shutdown = Shutdown::new();
        let elector =
            Elector::start(&self.connect(), settings, SystemClock::shared(), shutdown.clone()).unwrap();
        Candidate { elector, shutdown }
    }

    async fn lease(&self) -> Lease {
        self.client.get(&ElectionSettings::new("x").key()).await.unwrap()
    }

    /// Whether the store accepts a write with this fence.
    async fn accepts(&self, fence: &Fence) -> bool {
        let node = pb::Node {
            metadata: Some(pb::Metadata { name: "n".to_owned(), ..Default::default() }),
            ..Default::default()
        };
        let node = muster_proto::node::Node::try_from(node).unwrap();
        let happened = Event::about(ObjectReference::to(&node), EventType::Normal, "Tried", "it", "test");
        match self.client.with_fence(Some(fence)).record_event(happened).await {
            Ok(_) => true,
            Err(ClientError::Fenced(_)) => false,
            Err(error) => panic!("{error}"),
        }
    }
}

struct Candidate {
    elector: Elector,
    shutdown: Shutdown,
}

impl Candidate {
    /// The leadership as this candidate sees it, once it is as expected.
    async fn once(&self, what: &str, is_expected: impl Fn(&Leadership) -> bool) -> Leadership {
        let mut leadership = self.elector.leadership();
        let waiting = tokio::time::timeout(PATIENCE, leadership.wait_for(is_expected));
        match waiting.await {
            Ok(seen) => seen.unwrap().clone(),
            Err(_) => panic!("the candidate did not {what}: {:?}", self.elector.leadership().borrow()),
        }
    }

    async fn leads(&self) -> Fence {
        self.once("lead", |seen| seen.leading).await.fence.unwrap()
    }

    async fn follows(&self, holder: &str) {
        let seen = self.once("follow", |seen| seen.holder == holder).await;
        assert_eq!((seen.leading, seen.fence), (false, None));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_candidates_leads_and_hands_over_when_it_stops() {
    let harness = Harness::start().await;
    let (a, b) = (harness.compete("a", NEVER), harness.compete("b", NEVER));
    let first = tokio::select! {
        fence = a.leads() => fence,
        fence = b.leads() => fence,
    };
    let (leader, standby) = if first.holder() == "a" { (a, b) } else { (b, a) };
    standby.follows(first.holder()).await;
    assert_eq!((first.transitions(), harness.accepts(&first).await), (0, true));
    let lease = harness.lease().await;
    assert_eq!(lease.spec.lease_duration_seconds, Some(3600));
    assert!(lease.spec.acquire_time.is_some());
    // A renewal does not start a new term.
    tokio::time::timeout(PATIENCE, async {
        while harness.lease().await.meta.resource_version == lease.meta.resource_version {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    assert_eq!(leader.leads().await, first);

    leader.shutdown.trigger();
    let second = standby.leads().await;
    assert_eq!(second.transitions(), 1, "it did not wait until the lease expired");
    assert!(harness.accepts(&second).await && !harness.accepts(&first).await);
    let before = leader.elector.leadership();
    leader.elector.stopped().await.unwrap();
    assert!(!before.borrow().leading);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_takes_over_from_a_killed_leader_when_the_lease_has_expired() {
    let harness = Harness::start().await;
    let clock = SystemClock::shared();
    // In its own runtime, which is dropped like a killed process.
    let doomed = tokio::runtime::Runtime::new().unwrap();
    let harness = Arc::new(harness);
    let leading = doomed.spawn({
        let harness = Arc::clone(&harness);
        async move { harness.compete("a", SOON).leads().await }
    });
    let first = leading.await.unwrap();
    doomed.shutdown_background();
    let began = clock.mono();
    let b = harness.compete("b", SOON);
    b.follows("a").await;
    let next = b.leads().await;
    let [lease_duration, ..] = SOON;
    assert!(clock.mono() - began >= lease_duration, "the lease was not released");
    assert_eq!(next.holder(), "b");
    assert!(next.transitions() > first.transitions());
    assert!(!harness.accepts(&first).await, "the store refuses the killed leader's writes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_cannot_renew_stops_leading() {
    let harness = Harness::start().await;
    let a = harness.compete("a", SOON);
    a.leads().await;
    harness.shutdown.trigger();
    harness.store.stopped().await.unwrap();
    let seen = a.once("stop", |seen| !seen.leading).await;
    assert_eq!(seen.fence, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_write_was_refused_steps_down_and_competes_again() {
    let harness = Harness::start().await;
    let a = harness.compete("a", NEVER);
    let first = a.leads().await;
    a.elector.refusals().report(&first);
    let again = a.once("lead again", |seen| seen.fence.as_ref().is_some_and(|fence| *fence != first)).await;
    assert_eq!(again.fence.as_ref().unwrap().transitions(), 1);
    assert!(!harness.accepts(&first).await, "writes of the first term are refused");

    // The lease is deleted: it is created again, in a later term.
    let key = ElectionSettings::new("x").key();
    harness.client.delete::<Lease>(&key, DeleteOptions::default()).await.unwrap();
    let later = a.once("lead again", |seen| seen.fence.as_ref().is_some_and(|fence| fence.transitions() > 1));
    assert_eq!(later.await.fence.unwrap().transitions(), 2);
}

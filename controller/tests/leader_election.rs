//! Competitors for the controller's lease, against a real store.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::sync::Arc;
use std::time::Duration;

use muster_controller::leader_election::{ElectionSettings, Leader, Leadership};
use muster_proto::event::{Event, EventType, ObjectReference};
use muster_proto::fence::Fence;
use muster_proto::lease::Lease;
use muster_proto::pb;
use muster_rpc::clock::SystemClock;
use muster_rpc::config::parse_with_config;
use muster_rpc::shutdown::Shutdown;
use muster_store::run::Running;
use muster_store_client::{ClientError, DeleteOptions, StoreClient, StoreEndpoints};

/// No condition here takes this long on a machine that works.
const PATIENCE: Duration = Duration::from_secs(60);

/// Nothing runs out while a test runs.
const NEVER: [Duration; 3] =
    [Duration::from_secs(3600), Duration::from_secs(1800), Duration::from_millis(50)];
/// What is not renewed runs out soon.
const SOON: [Duration; 3] = [Duration::from_secs(2), Duration::from_secs(1), Duration::from_millis(50)];

/// A store in this process.
struct Stage {
    client: StoreClient,
    store: Running,
    shutdown: Shutdown,
    _files: tempfile::TempDir,
}

impl Stage {
    async fn set() -> Stage {
        let files = tempfile::tempdir().unwrap();
        let data = format!("--data-dir={}", files.path().join("store").display());
        let args = ["muster-store", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", &data];
        let parsed: muster_store::config::Flags = parse_with_config(args).unwrap();
        let shutdown = Shutdown::new();
        let store = muster_store::run::start((&parsed).try_into().unwrap(), shutdown.clone()).await.unwrap();
        let client =
            StoreClient::connect(StoreEndpoints::new([format!("http://{}", store.address)])).unwrap();
        Stage { client, store, shutdown, _files: files }
    }

    /// A connection of the runtime that asks for it.
    fn connect(&self) -> StoreClient {
        StoreClient::connect(StoreEndpoints::new([format!("http://{}", self.store.address)])).unwrap()
    }

    fn compete(
        &self,
        identity: &str,
        [lease_duration, renew_deadline, retry_period]: [Duration; 3],
    ) -> Competitor {
        let settings = ElectionSettings {
            lease_duration,
            renew_deadline,
            retry_period,
            ..ElectionSettings::new(identity)
        };
        let shutdown = Shutdown::new();
        let leader =
            Leader::start(&self.connect(), settings, SystemClock::shared(), shutdown.clone()).unwrap();
        Competitor { leader, shutdown }
    }

    async fn lease(&self) -> Lease {
        self.client.get(&ElectionSettings::new("x").key()).await.unwrap()
    }

    /// Whether the store takes a write with that fence.
    async fn takes(&self, fence: &Fence) -> bool {
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

struct Competitor {
    leader: Leader,
    shutdown: Shutdown,
}

impl Competitor {
    /// What it believes, once that is so.
    async fn once(&self, what: &str, is_so: impl Fn(&Leadership) -> bool) -> Leadership {
        let mut leadership = self.leader.leadership();
        let waiting = tokio::time::timeout(PATIENCE, leadership.wait_for(is_so));
        match waiting.await {
            Ok(believed) => believed.unwrap().clone(),
            Err(_) => panic!("it never came to {what}: {:?}", self.leader.leadership().borrow()),
        }
    }

    async fn leads(&self) -> Fence {
        self.once("lead", |believed| believed.leading).await.fence.unwrap()
    }

    async fn follows(&self, holder: &str) {
        let believed = self.once("follow", |believed| believed.holder == holder).await;
        assert_eq!((believed.leading, believed.fence), (false, None));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_exactly_one_leads_and_hands_over_when_it_stops() {
    let stage = Stage::set().await;
    let (a, b) = (stage.compete("a", NEVER), stage.compete("b", NEVER));
    let first = tokio::select! {
        fence = a.leads() => fence,
        fence = b.leads() => fence,
    };
    let (leader, standby) = if first.holder() == "a" { (a, b) } else { (b, a) };
    standby.follows(first.holder()).await;
    assert_eq!((first.transitions(), stage.takes(&first).await), (0, true));
    let lease = stage.lease().await;
    assert_eq!(lease.spec.lease_duration_seconds, Some(3600));
    assert!(lease.spec.acquire_time.is_some());
    // It is renewed, and that is no change of hands.
    tokio::time::timeout(PATIENCE, async {
        while stage.lease().await.meta.resource_version == lease.meta.resource_version {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    assert_eq!(leader.leads().await, first);

    leader.shutdown.trigger();
    let second = standby.leads().await;
    assert_eq!(second.transitions(), 1, "it did not wait for an hour");
    assert!(stage.takes(&second).await && !stage.takes(&first).await);
    let before = leader.leader.leadership();
    leader.leader.stopped().await.unwrap();
    assert!(!before.borrow().leading);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_killed_is_followed_when_its_lease_has_run_out() {
    let stage = Stage::set().await;
    let clock = SystemClock::shared();
    // In a runtime of its own, which goes like a process that is killed.
    let doomed = tokio::runtime::Runtime::new().unwrap();
    let stage = Arc::new(stage);
    let leading = doomed.spawn({
        let stage = Arc::clone(&stage);
        async move { stage.compete("a", SOON).leads().await }
    });
    let first = leading.await.unwrap();
    doomed.shutdown_background();
    let began = clock.mono();
    let b = stage.compete("b", SOON);
    b.follows("a").await;
    let next = b.leads().await;
    let [lease_duration, ..] = SOON;
    assert!(clock.mono() - began >= lease_duration, "nobody gave it back");
    assert_eq!(next.holder(), "b");
    assert!(next.transitions() > first.transitions());
    assert!(!stage.takes(&first).await, "the one that was killed writes nothing any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_cannot_renew_stops_leading() {
    let stage = Stage::set().await;
    let a = stage.compete("a", SOON);
    a.leads().await;
    stage.shutdown.trigger();
    stage.store.stopped().await.unwrap();
    let believed = a.once("stop", |believed| !believed.leading).await;
    assert_eq!(believed.fence, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_whose_write_was_refused_steps_down_and_competes_anew() {
    let stage = Stage::set().await;
    let a = stage.compete("a", NEVER);
    let first = a.leads().await;
    a.leader.refusals().tell(&first);
    let again =
        a.once("lead again", |believed| believed.fence.as_ref().is_some_and(|fence| *fence != first)).await;
    assert_eq!(again.fence.as_ref().unwrap().transitions(), 1);
    assert!(!stage.takes(&first).await, "what it meant to write before that is refused");

    // Somebody takes the lease away: it is made again, in a later term.
    let key = ElectionSettings::new("x").key();
    stage.client.delete::<Lease>(&key, DeleteOptions::default()).await.unwrap();
    let later =
        a.once("lead again", |believed| believed.fence.as_ref().is_some_and(|fence| fence.transitions() > 1));
    assert_eq!(later.await.fence.unwrap().transitions(), 2);
}

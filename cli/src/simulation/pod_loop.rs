//! The pods of all simulated machines: one watch, and what follows from it, a few calls at a time.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use muster_proto::key::Key;
use muster_proto::pod::Pod;
use muster_proto::watch_event::WatchEvent;
use muster_rpc::clock::SharedClock;
use muster_store_client::{ClientError, DeleteOptions, Preconditions, StoreClient, Watch, WatchOptions};
use tokio::time::sleep;

use super::machines::Roll;
use super::pod_lifecycle::{self, Step};

/// Calls under way at once.
const CALLS: usize = 64;

/// What a call came to.
struct Called {
    key: Key,
    /// The version it was made for.
    version: u64,
    outcome: Result<Done, ClientError>,
}

enum Done {
    Said(Box<Pod>),
    Removed,
    /// The machine was switched off before it could say anything.
    Silenced,
}

/// What looks after the pods.
pub(super) struct Pods {
    client: StoreClient,
    roll: Roll,
    clock: SharedClock,
    /// How long a program takes to start or to stop.
    moment: Duration,
    /// Those on simulated machines.
    known: BTreeMap<Key, Pod>,
    /// Pods that something is due for and no call is under way for.
    due: VecDeque<Key>,
    /// Pods that are due or under way: one call each.
    busy: HashSet<Key>,
    calls: FuturesUnordered<BoxFuture<'static, Called>>,
}

impl Pods {
    pub(super) fn new(client: StoreClient, roll: Roll, clock: SharedClock, moment: Duration) -> Pods {
        Pods {
            client,
            roll,
            clock,
            moment,
            known: BTreeMap::new(),
            due: VecDeque::new(),
            busy: HashSet::new(),
            calls: FuturesUnordered::new(),
        }
    }

    /// Runs until it is dropped.
    pub(super) async fn run(mut self) {
        let mut watch: Watch<Pod> = self.client.watch(WatchOptions::default());
        let mut switched = self.roll.changes();
        loop {
            while self.calls.len() < CALLS
                && let Some(key) = self.due.pop_front()
            {
                self.begin(key);
            }
            tokio::select! {
                Some(event) = watch.next() => self.fold(event),
                Some(called) = self.calls.next() => self.settle(called),
                Ok(()) = switched.changed() => {
                    let keys: Vec<Key> = self.known.keys().cloned().collect();
                    keys.iter().for_each(|key| self.consider(key));
                }
            }
        }
    }

    fn fold(&mut self, event: WatchEvent<Pod>) {
        match event {
            WatchEvent::Applied { record } => self.learn(record),
            WatchEvent::Gone { key, uid, .. } => {
                if self.known.get(&key).is_some_and(|pod| uid.is_none() || pod.meta.uid == uid) {
                    self.known.remove(&key);
                }
            }
            WatchEvent::Synced { .. } | WatchEvent::Lost(_) => {}
        }
    }

    fn learn(&mut self, pod: Pod) {
        let is_ours =
            pod.spec.node_name.as_ref().is_some_and(|node| self.roll.is_up(node.as_str()).is_some());
        let key = Key::of(&pod);
        if is_ours {
            let is_older = |held: &Pod| {
                held.meta.uid == pod.meta.uid && held.meta.resource_version > pod.meta.resource_version
            };
            if !self.known.get(&key).is_some_and(is_older) {
                self.known.insert(key.clone(), pod);
            }
            self.consider(&key);
        } else {
            self.known.remove(&key);
        }
    }

    /// The machine of a pod, if it is up, and what it does next.
    fn next(&self, key: &Key) -> Option<(usize, Step)> {
        let pod = self.known.get(key)?;
        let node = pod.spec.node_name.as_ref()?;
        let is_up = self.roll.is_up(node.as_str())?;
        let machine = self.roll.blueprint.index(node.as_str())?;
        pod_lifecycle::next(pod).filter(|_| is_up).map(|step| (machine, step))
    }

    fn consider(&mut self, key: &Key) {
        if self.next(key).is_some() && self.busy.insert(key.clone()) {
            self.due.push_back(key.clone());
        }
    }

    fn begin(&mut self, key: Key) {
        let Some((machine, step)) = self.next(&key) else {
            self.busy.remove(&key);
            return;
        };
        let pod = self.known[&key].clone();
        let (client, roll) = (self.client.clone(), self.roll.clone());
        let (clock, moment) = (SharedClock::clone(&self.clock), self.moment);
        let call = async move {
            let version = pod.meta.resource_version;
            if step != Step::Remove {
                sleep(moment).await;
            }
            if pod.spec.node_name.as_ref().is_none_or(|node| roll.is_up(node.as_str()) != Some(true)) {
                return Called { key, version, outcome: Ok(Done::Silenced) };
            }
            let outcome = match step {
                Step::Run => {
                    client.update_status(pod_lifecycle::running(&pod, machine, clock.wall())).await.map(said)
                }
                Step::End => client.update_status(pod_lifecycle::ended(&pod, clock.wall())).await.map(said),
                Step::Remove => {
                    let preconditions = Preconditions::uid_of(&pod);
                    let options = DeleteOptions { preconditions, grace_period_seconds: Some(0) };
                    client.delete::<Pod>(&key, options).await.map(|_| Done::Removed)
                }
            };
            if let Err(error) = &outcome
                && error.is_retryable()
            {
                sleep(error.retry_after().unwrap_or(moment)).await;
            }
            Called { key, version, outcome }
        };
        self.calls.push(call.boxed());
    }

    fn settle(&mut self, called: Called) {
        let Called { key, version, outcome } = called;
        self.busy.remove(&key);
        match outcome {
            Ok(Done::Said(pod)) => self.learn(*pod),
            Ok(Done::Removed) => drop(self.known.remove(&key)),
            // It may be up again by now.
            Ok(Done::Silenced) => self.consider(&key),
            Err(error) if error.is_retryable() => self.consider(&key),
            Err(error) => {
                tracing::debug!(pod = %key, %error, "a simulated pod changed meanwhile");
                // Somebody else was first. The watch tells what they did, unless it did so during the call.
                if self.known.get(&key).is_some_and(|pod| pod.meta.resource_version > version) {
                    self.consider(&key);
                }
            }
        }
    }
}

fn said(pod: Pod) -> Done {
    Done::Said(Box::new(pod))
}

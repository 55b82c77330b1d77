//! The loop over the pods of all simulated nodes: one watch, and a limited number of concurrent calls to the store.

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

use super::machines::Machines;
use super::pod_lifecycle::{self, Step};

/// The maximum number of concurrent calls.
const MAX_CALLS: usize = 64;

/// A finished call.
struct FinishedCall {
    key: Key,
    /// The version of the pod that the call was made for.
    version: u64,
    outcome: Result<Outcome, ClientError>,
}

enum Outcome {
    StatusWritten(Box<Pod>),
    Deleted,
    /// The machine was switched off before the call was sent.
    PowerOff,
}

/// The state of the loop.
pub(super) struct PodLoop {
    client: StoreClient,
    machines: Machines,
    clock: SharedClock,
    /// How long a simulated container takes to start or to stop.
    container_delay: Duration,
    /// The pods on simulated nodes.
    known: BTreeMap<Key, Pod>,
    /// Pods that need a call and have none in flight.
    due: VecDeque<Key>,
    /// Pods that are due or have a call in flight, so that each pod has one call at a time.
    busy: HashSet<Key>,
    calls: FuturesUnordered<BoxFuture<'static, FinishedCall>>,
}

impl PodLoop {
    pub(super) fn new(
        client: StoreClient,
        machines: Machines,
        clock: SharedClock,
        container_delay: Duration,
    ) -> PodLoop {
        PodLoop {
            client,
            machines,
            clock,
            container_delay,
            known: BTreeMap::new(),
            due: VecDeque::new(),
            busy: HashSet::new(),
            calls: FuturesUnordered::new(),
        }
    }

    /// Runs until it is dropped.
    pub(super) async fn run(mut self) {
        let mut watch: Watch<Pod> = self.client.watch(WatchOptions::default());
        let mut power_changes = self.machines.changes();
        loop {
            while self.calls.len() < MAX_CALLS
                && let Some(key) = self.due.pop_front()
            {
                self.start_call(key);
            }
            tokio::select! {
                Some(event) = watch.next() => self.observe(event),
                Some(call) = self.calls.next() => self.finish_call(call),
                Ok(()) = power_changes.changed() => {
                    let keys: Vec<Key> = self.known.keys().cloned().collect();
                    keys.iter().for_each(|key| self.enqueue_if_due(key));
                }
            }
        }
    }

    fn observe(&mut self, event: WatchEvent<Pod>) {
        match event {
            WatchEvent::Applied { record } => self.update(record),
            WatchEvent::Gone { key, uid, .. } => {
                if self.known.get(&key).is_some_and(|pod| uid.is_none() || pod.meta.uid == uid) {
                    self.known.remove(&key);
                }
            }
            WatchEvent::Synced { .. } | WatchEvent::Lost(_) => {}
        }
    }

    /// Stores a pod unless a newer version is known, and forgets a pod that is not on a simulated node.
    fn update(&mut self, pod: Pod) {
        let is_simulated =
            pod.spec.node_name.as_ref().is_some_and(|node| self.machines.is_on(node.as_str()).is_some());
        let key = Key::of(&pod);
        if is_simulated {
            let is_older = |held: &Pod| {
                held.meta.uid == pod.meta.uid && held.meta.resource_version > pod.meta.resource_version
            };
            if !self.known.get(&key).is_some_and(is_older) {
                self.known.insert(key.clone(), pod);
            }
            self.enqueue_if_due(&key);
        } else {
            self.known.remove(&key);
        }
    }

    /// The index of the pod's node and the next step for the pod; `None` if the machine is off or nothing is due.
    fn next_step(&self, key: &Key) -> Option<(usize, Step)> {
        let pod = self.known.get(key)?;
        let node = pod.spec.node_name.as_ref()?;
        let is_on = self.machines.is_on(node.as_str())?;
        let index = self.machines.spec.index(node.as_str())?;
        pod_lifecycle::next_step(pod).filter(|_| is_on).map(|step| (index, step))
    }

    fn enqueue_if_due(&mut self, key: &Key) {
        if self.next_step(key).is_some() && self.busy.insert(key.clone()) {
            self.due.push_back(key.clone());
        }
    }

    fn start_call(&mut self, key: Key) {
        let Some((index, step)) = self.next_step(&key) else {
            self.busy.remove(&key);
            return;
        };
        let pod = self.known[&key].clone();
        let (client, machines) = (self.client.clone(), self.machines.clone());
        let (clock, container_delay) = (SharedClock::clone(&self.clock), self.container_delay);
        let call = async move {
            let version = pod.meta.resource_version;
            if step != Step::DeleteRecord {
                sleep(container_delay).await;
            }
            if pod.spec.node_name.as_ref().is_none_or(|node| machines.is_on(node.as_str()) != Some(true)) {
                return FinishedCall { key, version, outcome: Ok(Outcome::PowerOff) };
            }
            let outcome = match step {
                Step::ReportRunning => {
                    let running = pod_lifecycle::running(&pod, index, clock.wall());
                    client.update_status(running).await.map(status_written)
                }
                Step::ReportTerminated => {
                    let terminated = pod_lifecycle::terminated(&pod, clock.wall());
                    client.update_status(terminated).await.map(status_written)
                }
                Step::DeleteRecord => {
                    let preconditions = Preconditions::uid_of(&pod);
                    let options = DeleteOptions { preconditions, grace_period_seconds: Some(0) };
                    client.delete::<Pod>(&key, options).await.map(|_| Outcome::Deleted)
                }
            };
            if let Err(error) = &outcome
                && error.is_retryable()
            {
                sleep(error.retry_after().unwrap_or(container_delay)).await;
            }
            FinishedCall { key, version, outcome }
        };
        self.calls.push(call.boxed());
    }

    fn finish_call(&mut self, call: FinishedCall) {
        let FinishedCall { key, version, outcome } = call;
        self.busy.remove(&key);
        match outcome {
            Ok(Outcome::StatusWritten(pod)) => self.update(*pod),
            Ok(Outcome::Deleted) => drop(self.known.remove(&key)),
            // The machine may be on again by now.
            Ok(Outcome::PowerOff) => self.enqueue_if_due(&key),
            Err(error) if error.is_retryable() => self.enqueue_if_due(&key),
            Err(error) => {
                tracing::debug!(pod = %key, %error, "a simulated pod was changed by another client");
                // The watch will deliver that change, or has delivered it during the call.
                if self.known.get(&key).is_some_and(|pod| pod.meta.resource_version > version) {
                    self.enqueue_if_due(&key);
                }
            }
        }
    }
}

fn status_written(pod: Pod) -> Outcome {
    Outcome::StatusWritten(Box::new(pod))
}

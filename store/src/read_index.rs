//! Linearizable reads at any of several stores: one read of the head in etcd serves all reads that wait for one.
//!
//! A store's memory is not proof, not even the leader's: a commit may be visible at a follower before etcd's answer has
//! reached the leader, and a leader that slept does not know its successor. So each read first gets the head that etcd
//! had after the read came in, and then waits until this store has applied it. No clock is involved.
//!
//! A read that comes in while the head is being read waits for the next one: the head under way may be older than a
//! write that was acknowledged in between.

use std::future::Future;
use std::time::Duration;

use muster_store_core::history::Revision;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use crate::error::StoreError;
use crate::store::Store;

/// Between the beginnings of two reads of the head. Its cost in etcd does not depend on how many reads it serves.
const APART: Duration = Duration::from_millis(2);
/// How long this store may take to apply a head.
const CATCH_UP: Duration = Duration::from_secs(3);

/// Who waits for a head that is read after now.
type Waiting = oneshot::Sender<Result<Revision, String>>;

/// Confirms reads. Clones share the reads of the head.
#[derive(Debug, Clone)]
pub struct ReadIndex {
    waiting: mpsc::UnboundedSender<Waiting>,
}

impl ReadIndex {
    /// Also returns the work, which ends when the last clone is dropped. `read_head` is one read of the head that shows
    /// every commit which was acknowledged before.
    pub fn new<F>(read_head: impl FnMut() -> F + Send + 'static) -> (Self, impl Future<Output = ()> + Send)
    where
        F: Future<Output = Result<Revision, String>> + Send,
    {
        // Bounded by the calls that the server admits.
        let (waiting, requests) = mpsc::unbounded_channel();
        (Self { waiting }, serve(requests, read_head))
    }

    /// The head after now.
    ///
    /// # Errors
    /// `Unconfirmed` when it cannot be read.
    pub async fn head(&self) -> Result<Revision, StoreError> {
        let (answer, answered) = oneshot::channel();
        let unconfirmed = |reason: String| StoreError::Unconfirmed { reason };
        self.waiting.send(answer).map_err(|_| StoreError::Stopping)?;
        answered.await.map_err(|_| StoreError::Stopping)?.map_err(unconfirmed)
    }

    /// Waits until the store has applied everything that was acknowledged before now.
    ///
    /// # Errors
    /// `Unconfirmed` when that cannot be known, or takes too long.
    pub async fn confirm(&self, store: &Store) -> Result<(), StoreError> {
        let wanted = self.head().await?;
        let mut head = store.log().follow_head();
        let applied = timeout(CATCH_UP, head.wait_for(|head| *head >= wanted)).await;
        if matches!(applied, Ok(Ok(_))) {
            return Ok(());
        }
        let reason = format!("it has applied revision {}, and etcd has {wanted}", store.log().head());
        Err(StoreError::Unconfirmed { reason })
    }
}

async fn serve<F>(mut requests: mpsc::UnboundedReceiver<Waiting>, mut read_head: impl FnMut() -> F)
where
    F: Future<Output = Result<Revision, String>>,
{
    while let Some(first) = requests.recv().await {
        // Only those who came before the read begins.
        let mut waiting = vec![first];
        while let Ok(next) = requests.try_recv() {
            waiting.push(next);
        }
        let apart = sleep(APART);
        let head = read_head().await;
        for one in waiting {
            // The caller may be gone.
            let _ = one.send(head.clone());
        }
        apart.await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    /// Heads are 1, 2, 3...; each is read when the test lets it.
    struct Heads {
        begun: AtomicU64,
        permitted: Semaphore,
    }

    fn index() -> (ReadIndex, Arc<Heads>) {
        let heads = Arc::new(Heads { begun: AtomicU64::new(0), permitted: Semaphore::new(0) });
        let source = Arc::clone(&heads);
        let (index, work) = ReadIndex::new(move || {
            let (heads, head) = (Arc::clone(&source), source.begun.fetch_add(1, Ordering::Relaxed) + 1);
            async move {
                heads.permitted.acquire().await.map_err(|error| error.to_string())?.forget();
                Ok(head)
            }
        });
        tokio::spawn(work);
        (index, heads)
    }

    async fn begun(heads: &Heads, count: u64) {
        while heads.begun.load(Ordering::Relaxed) < count {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_read_that_comes_while_the_head_is_read_gets_the_next_head() {
        let (index, heads) = index();
        let ask = || {
            let index = index.clone();
            tokio::spawn(async move { index.head().await.unwrap() })
        };
        let first = ask();
        begun(&heads, 1).await;
        // Joining the read under way would be the classic stale read.
        let late: Vec<_> = (0..100).map(|_| ask()).collect();
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        heads.permitted.add_permits(1);
        assert_eq!(first.await.unwrap(), 1);
        begun(&heads, 2).await;
        heads.permitted.add_permits(1);
        for one in late {
            assert_eq!(one.await.unwrap(), 2, "one read of the head serves all that wait");
        }
        assert_eq!(heads.begun.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_head_that_cannot_be_read_confirms_nothing() {
        let (index, work) = ReadIndex::new(async || Err("etcd has no leader".to_owned()));
        tokio::spawn(work);
        let refused = index.head().await.unwrap_err();
        assert_eq!(refused, StoreError::Unconfirmed { reason: "etcd has no leader".to_owned() });
    }
}

//! A question that blocks a thread and may be answered late: to the kernel, the resolver or the runtime.
//!
//! The node loop asks, and must renew the node's lease whether or not an answer comes. So a question runs on a blocking
//! thread and is waited for at most [`WAIT`]. While an answer is outstanding the question is not asked again, and the
//! last answer counts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// How long the caller waits for an answer.
pub(crate) const WAIT: Duration = Duration::from_secs(1);

/// One question, asked again and again. Keeps the last answer.
pub(crate) struct BlockingProbe<T> {
    state: Arc<Mutex<State<T>>>,
}

struct State<T> {
    last: Option<T>,
    is_outstanding: bool,
}

/// What is known after a question.
pub(crate) struct Answer<T> {
    /// The newest answer; `None` if there was none yet.
    pub(crate) last: Option<T>,
    /// Whether the newest question has not been answered yet.
    pub(crate) is_late: bool,
}

impl<T> Default for BlockingProbe<T> {
    fn default() -> Self {
        Self { state: Arc::new(Mutex::new(State { last: None, is_outstanding: false })) }
    }
}

impl<T: Clone + Send + 'static> BlockingProbe<T> {
    /// Asks unless an answer is outstanding, waits for at most [`WAIT`], and returns the newest answer.
    pub(crate) async fn ask(&self, question: impl FnOnce() -> T + Send + 'static) -> Answer<T> {
        let was_outstanding = std::mem::replace(&mut lock(&self.state).is_outstanding, true);
        if !was_outstanding {
            let state = Arc::clone(&self.state);
            let asking = spawn_blocking(move || {
                let last = Some(question());
                *lock(&state) = State { last, is_outstanding: false };
            });
            // A timeout shows in `is_outstanding`.
            let _ = timeout(WAIT, asking).await;
        }
        let state = lock(&self.state);
        Answer { last: state.last.clone(), is_late: state.is_outstanding }
    }
}

fn lock<T>(state: &Mutex<State<T>>) -> MutexGuard<'_, State<T>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

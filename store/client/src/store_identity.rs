//! Which store answers: an id in the head of each response shows whether two addresses lead to one store.
//!
//! Calls and watches move between the addresses of one store. If one of them led to an unrelated store, all records would
//! seem to be gone. So an address of another store is refused, and the others are used.

use std::collections::BTreeSet;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use muster_rpc::layers::store_id::STORE_ID_KEY;
use tonic::codegen::http::{HeaderValue, Request, Response};
use tower::Service;

/// The store that a client uses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KnownStore {
    url: String,
    id: String,
}

/// What the id of a response means.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// It is the first response: this is the client's store from now on.
    First,
    Same,
    /// The only address leads to another store than before. It is used; what was read from the former one is outdated.
    Changed,
    Refused(OtherStore),
}

/// An address that leads to another store than the one in use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error(
    "{url} is another store (id {id}) than {known_url} (id {known_id}), which answered first: give only addresses of \
     one store"
)]
pub(crate) struct OtherStore {
    url: String,
    id: String,
    known_url: String,
    known_id: String,
}

/// Judges the id of a response from one address.
fn judge(known: Option<&KnownStore>, is_only_address: bool, url: &str, id: &str) -> Verdict {
    match known {
        None => Verdict::First,
        Some(known) if known.id == id => Verdict::Same,
        Some(_) if is_only_address => Verdict::Changed,
        Some(known) => Verdict::Refused(OtherStore {
            url: url.to_owned(),
            id: id.to_owned(),
            known_url: known.url.clone(),
            known_id: known.id.clone(),
        }),
    }
}

/// The identity of the store in use, shared by the connections of a client.
#[derive(Debug)]
pub(crate) struct StoreIdentity {
    is_only_address: bool,
    known: Mutex<Option<KnownStore>>,
    /// How often the store has changed.
    changes: AtomicU64,
    /// What was logged already.
    refused: Mutex<BTreeSet<OtherStore>>,
}

impl StoreIdentity {
    pub(crate) fn new(addresses: usize) -> StoreIdentity {
        StoreIdentity {
            is_only_address: addresses == 1,
            known: Mutex::default(),
            changes: AtomicU64::new(0),
            refused: Mutex::default(),
        }
    }

    /// How often the store has changed. Revisions that were read before a change mean nothing after it.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The id that a call is meant for: none with a single address, which is used whatever its id is.
    fn wanted(&self) -> Option<HeaderValue> {
        if self.is_only_address {
            return None;
        }
        self.known().as_ref().and_then(|known| HeaderValue::try_from(&*known.id).ok())
    }

    fn observe(&self, url: &str, id: &str) -> Result<(), OtherStore> {
        let mut known = self.known();
        match judge(known.as_ref(), self.is_only_address, url, id) {
            Verdict::Same => return Ok(()),
            Verdict::First => {}
            Verdict::Changed => {
                let before = known.as_ref().map_or("", |known| &known.id);
                tracing::warn!(url, before, id, "the store at this address is another one than before");
                self.changes.fetch_add(1, Ordering::Release);
            }
            Verdict::Refused(other) => {
                drop(known);
                let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
                if refused.insert(other.clone()) {
                    tracing::error!("{other}");
                }
                return Err(other);
            }
        }
        *known = Some(KnownStore { url: url.to_owned(), id: id.to_owned() });
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, Option<KnownStore>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection whose responses are checked for the store's id. A store without an id, of an older release, is accepted.
#[derive(Clone, Debug)]
pub struct Identified<S> {
    inner: S,
    url: Arc<str>,
    identity: Arc<StoreIdentity>,
}

impl<S> Identified<S> {
    pub(crate) fn new(inner: S, url: &str, identity: Arc<StoreIdentity>) -> Identified<S> {
        Identified { inner, url: url.into(), identity }
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for Identified<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Response = Response<ResBody>;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        if let Some(wanted) = self.identity.wanted() {
            request.headers_mut().insert(STORE_ID_KEY, wanted);
        }
        let (call, url, identity) =
            (self.inner.call(request), Arc::clone(&self.url), Arc::clone(&self.identity));
        Box::pin(async move {
            let response = call.await.map_err(Into::into)?;
            let id = response.headers().get(STORE_ID_KEY).and_then(|id| id.to_str().ok());
            if let Some(id) = id.filter(|id| !id.is_empty()) {
                identity.observe(&url, id)?;
            }
            Ok(response)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_store_is_refused_unless_it_has_the_only_address() {
        let known = KnownStore { url: "http://a".to_owned(), id: "1".to_owned() };
        let refused = |url: &str, id: &str| {
            Verdict::Refused(OtherStore {
                url: url.to_owned(),
                id: id.to_owned(),
                known_url: "http://a".to_owned(),
                known_id: "1".to_owned(),
            })
        };
        for (known, is_only, url, id, expected) in [
            (None, true, "http://a", "1", Verdict::First),
            (None, false, "http://b", "2", Verdict::First),
            (Some(&known), true, "http://a", "1", Verdict::Same),
            (Some(&known), true, "http://a", "2", Verdict::Changed),
            (Some(&known), false, "http://a", "1", Verdict::Same),
            (Some(&known), false, "http://b", "1", Verdict::Same),
            (Some(&known), false, "http://b", "2", refused("http://b", "2")),
            (Some(&known), false, "http://a", "2", refused("http://a", "2")),
        ] {
            assert_eq!(judge(known, is_only, url, id), expected, "{known:?}, {is_only}, {url}, {id}");
        }
        let Verdict::Refused(other) = refused("http://b", "2") else { unreachable!() };
        let text = other.to_string();
        assert!(text.starts_with("http://b is another store (id 2) than http://a (id 1)"), "{text}");
    }

    #[test]
    fn a_change_is_counted_once_and_a_refused_store_is_never_taken_for_the_known_one() {
        let only = StoreIdentity::new(1);
        let counted: Vec<u64> = ["1", "1", "2", "2", "1"]
            .map(|id| {
                only.observe("http://a", id).unwrap();
                only.changes()
            })
            .into();
        assert_eq!(counted, [0, 0, 1, 1, 2]);
        assert_eq!(only.wanted(), None);

        let several = StoreIdentity::new(2);
        assert_eq!(several.wanted(), None, "nothing is known yet");
        several.observe("http://a", "1").unwrap();
        for _ in 0..2 {
            several.observe("http://b", "2").unwrap_err();
        }
        several.observe("http://a", "1").unwrap();
        assert_eq!((several.changes(), several.wanted()), (0, Some(HeaderValue::from_static("1"))));
    }
}

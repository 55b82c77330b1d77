//! Which requests for certificates are to be signed now, and for how long a certificate is valid.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use muster_proto::backoff::Backoff;
use muster_proto::certificate_request::{CertificateRequest, RequestState};
use muster_proto::name::Name;
use muster_proto::time::Mono;

/// How soon a request is tried again that could not be signed, or whose outcome could not be written.
const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));

/// What became of an attempt to sign a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The outcome is written, or somebody else has changed the request: its next version says what to do.
    Done,
    /// To be tried again later.
    Later,
}

#[derive(Clone, Debug)]
struct Waiting {
    request: CertificateRequest,
    failures: u32,
    due: Mono,
}

/// Approved requests, in the order in which they are to be tried.
#[derive(Clone, Debug, Default)]
pub struct SigningQueue {
    waiting: BTreeMap<Name, Waiting>,
    order: BTreeSet<(Mono, Name)>,
}

impl SigningQueue {
    /// Takes in a request as it is now. Only an approved one is signed.
    pub fn observe(&mut self, request: CertificateRequest, now: Mono) {
        let name = request.meta.name.clone();
        self.remove(&name);
        if request.status.state == RequestState::Approved {
            self.insert(name, Waiting { request, failures: 0, due: now });
        }
    }

    /// The request is gone, or it is not approved any more.
    pub fn remove(&mut self, name: &Name) {
        if let Some(waiting) = self.waiting.remove(name) {
            self.order.remove(&(waiting.due, name.clone()));
        }
    }

    /// The request to sign now, if one is due.
    pub fn due(&self, now: Mono) -> Option<&CertificateRequest> {
        let (_, name) = self.order.first().filter(|(due, _)| *due <= now)?;
        self.waiting.get(name).map(|waiting| &waiting.request)
    }

    /// When the next request is due.
    pub fn wake_at(&self) -> Option<Mono> {
        self.order.first().map(|(due, _)| *due)
    }

    /// Takes in what became of an attempt. `jitter` is random, from 0 to 1.
    pub fn settle(&mut self, name: &Name, settled: Settled, jitter: f64, now: Mono) {
        let Some(mut waiting) = self.waiting.get(name).cloned() else { return };
        self.remove(name);
        if settled == Settled::Later {
            waiting.failures += 1;
            waiting.due = now + RETRY.delay(waiting.failures, jitter);
            self.insert(name.clone(), waiting);
        }
    }

    /// How many requests are approved and not signed.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Forgets everything, before a new list.
    pub fn clear(&mut self) {
        *self = SigningQueue::default();
    }

    fn insert(&mut self, name: Name, waiting: Waiting) {
        self.order.insert((waiting.due, name.clone()));
        self.waiting.insert(name, waiting);
    }
}

/// From when to when a certificate is valid; `None` if the authority's own is not.
///
/// It begins when the node asked, by the store's clock: a certificate that seems to begin in the future is refused, and
/// one that begins before the node's revocation is revoked with the others.
pub fn validity(
    request: &CertificateRequest,
    now: Timestamp,
    life: Duration,
    authority_ends: Timestamp,
) -> Option<(Timestamp, Timestamp)> {
    let asked = request.meta.creation_timestamp.unwrap_or(now);
    let life = SignedDuration::try_from(life).unwrap_or(SignedDuration::MAX);
    let ends = now.checked_add(life).unwrap_or(Timestamp::MAX).min(authority_ends);
    (ends > now).then(|| (asked.min(now), ends))
}

#[cfg(test)]
mod tests {
    use muster_proto::certificate_request::{CertificateRequestSpec, CertificateRequestStatus};
    use muster_proto::digest::Sha256;
    use muster_proto::meta::Metadata;

    use super::*;

    fn request(name: &str, state: RequestState) -> CertificateRequest {
        CertificateRequest {
            meta: Metadata::new(None, name.parse().unwrap()),
            spec: CertificateRequestSpec {
                node_name: "a".parse().unwrap(),
                request: "PEM".to_owned(),
                public_key_sha256: Sha256::of(b"key"),
                token_id: None,
                requested_by: String::new(),
                source_address: String::new(),
                labels: Default::default(),
            },
            status: CertificateRequestStatus { state, ..CertificateRequestStatus::default() },
        }
    }

    fn at(millis: u64) -> Mono {
        Mono::since_origin(Duration::from_millis(millis))
    }

    fn due(queue: &SigningQueue, millis: u64) -> Option<&str> {
        queue.due(at(millis)).map(|request| request.meta.name.as_str())
    }

    #[test]
    fn only_approved_requests_are_signed_and_each_once() {
        let mut queue = SigningQueue::default();
        for (name, state) in [
            ("a", RequestState::Pending),
            ("b", RequestState::Approved),
            ("c", RequestState::Denied),
            ("d", RequestState::Issued),
            ("e", RequestState::Failed),
            ("f", RequestState::Approved),
        ] {
            queue.observe(request(name, state), at(1));
        }
        assert_eq!((queue.len(), due(&queue, 0), due(&queue, 1)), (2, None, Some("b")));
        queue.settle(&"b".parse().unwrap(), Settled::Done, 0.0, at(1));
        assert_eq!(due(&queue, 1), Some("f"));
        queue.observe(request("f", RequestState::Denied), at(2));
        assert_eq!((queue.is_empty(), queue.wake_at()), (true, None));
        queue.settle(&"f".parse().unwrap(), Settled::Later, 0.0, at(2));
        assert!(queue.is_empty(), "it was denied meanwhile");
    }

    #[test]
    fn a_request_that_cannot_be_signed_is_tried_again_and_delays_no_other() {
        let mut queue = SigningQueue::default();
        queue.observe(request("a", RequestState::Approved), at(0));
        queue.settle(&"a".parse().unwrap(), Settled::Later, 0.0, at(0));
        assert_eq!((due(&queue, 499), due(&queue, 500)), (None, Some("a")));
        queue.settle(&"a".parse().unwrap(), Settled::Later, 0.0, at(500));
        assert_eq!(queue.wake_at(), Some(at(1500)));
        queue.observe(request("b", RequestState::Approved), at(600));
        assert_eq!(due(&queue, 600), Some("b"));
        queue.observe(request("a", RequestState::Approved), at(700));
        assert_eq!(due(&queue, 600), Some("b"));
        queue.clear();
        assert_eq!(queue.wake_at(), None);
    }

    #[test]
    fn a_certificate_begins_when_it_was_asked_for_and_ends_before_its_authority() {
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        let (asked, now) = (time("2026-01-01T00:00:00Z"), time("2026-01-01T00:10:00Z"));
        let mut request = request("a", RequestState::Approved);
        request.meta.creation_timestamp = Some(asked);
        let hour = Duration::from_secs(3600);
        let far = time("2027-01-01T00:00:00Z");
        assert_eq!(validity(&request, now, hour, far), Some((asked, time("2026-01-01T01:10:00Z"))));
        let soon = time("2026-01-01T00:20:00Z");
        assert_eq!(validity(&request, now, hour, soon), Some((asked, soon)));
        assert_eq!(validity(&request, now, hour, now), None, "the authority has expired");
        let behind = time("2025-12-31T23:59:00Z");
        assert_eq!(validity(&request, behind, hour, far), Some((behind, time("2026-01-01T00:59:00Z"))));
    }
}

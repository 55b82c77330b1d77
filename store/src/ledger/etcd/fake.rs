//! An etcd in memory, which can be made to do what a real one does only at bad moments.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use muster_etcd::pb::mvccpb::event::EventType;
use muster_etcd::{EtcdError, pb};

use super::kv::Kv;

/// What happens to a transaction that writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// It is done as usual.
    Pass,
    /// It is done, and the answer is lost.
    LostAnswer,
    /// It is not done, and nobody says so.
    LostRequest,
    /// It gives no answer, and is done after so many further calls.
    Late(usize),
    /// It is done, and etcd reports that there is no space.
    NoSpaceAfterwards,
    /// It is not done.
    Refused(EtcdError),
    /// It gives no answer and is done, and then another store takes over and commits this often.
    DoneThenDeposed { commits: usize },
    /// It gives no answer and is not done; another store takes over and commits this often.
    LostThenDeposed { commits: usize },
}

/// What another store does, with the number of its commits.
type Takeover = Box<dyn FnMut(usize) + Send>;

#[derive(Default)]
struct Content {
    revision: i64,
    keys: BTreeMap<Bytes, pb::KeyValue>,
    faults: VecDeque<Fault>,
    late: Vec<(usize, pb::TxnRequest)>,
    is_full: bool,
    /// Every change so far, for watches.
    events: Vec<pb::Event>,
    /// The writing transactions that were sent: operations and bytes.
    pub(super) sent: Vec<(usize, usize)>,
}

/// The fake. Reads are of the present only; there is no history.
#[derive(Default)]
pub(super) struct FakeEtcd {
    content: Mutex<Content>,
    /// Does what another store would do when it takes over.
    takeover: Mutex<Option<Takeover>>,
}

impl FakeEtcd {
    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap()
    }

    /// These are the fates of the next writing transactions.
    pub(super) fn inject(&self, faults: impl IntoIterator<Item = Fault>) {
        self.content().faults.extend(faults);
    }

    pub(super) fn set_full(&self, is_full: bool) {
        self.content().is_full = is_full;
    }

    pub(super) fn on_takeover(&self, takeover: impl FnMut(usize) + Send + 'static) {
        *self.takeover.lock().unwrap() = Some(Box::new(takeover));
    }

    pub(super) fn keys(&self) -> Vec<String> {
        self.content().keys.keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
    }

    pub(super) fn put(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> i64 {
        let success = vec![muster_etcd::requests::put(key, value)];
        self.content().apply(&pb::TxnRequest { success, ..Default::default() }).revision()
    }

    pub(super) fn delete(&self, key: impl Into<Bytes>) {
        let success = vec![muster_etcd::requests::delete(key)];
        self.content().apply(&pb::TxnRequest { success, ..Default::default() });
    }

    /// What a watch shows from this revision on.
    pub(super) fn events_from(&self, revision: i64) -> Vec<pb::Event> {
        let content = self.content();
        let after = content.events.iter().filter(|event| event.kv.as_ref().unwrap().mod_revision >= revision);
        after.cloned().collect()
    }

    pub(super) fn sent(&self) -> Vec<(usize, usize)> {
        self.content().sent.clone()
    }

    fn take_over(&self, commits: usize) {
        let takeover = self.takeover.lock().unwrap().take();
        takeover.expect("a test says what another store does")(commits);
    }
}

impl Content {
    fn range(&self, request: &pb::RangeRequest) -> pb::RangeResponse {
        let found: Vec<_> = if request.range_end.is_empty() {
            self.keys.get(&request.key).into_iter().cloned().collect()
        } else {
            self.keys
                .range(request.key.clone()..request.range_end.clone())
                .map(|(_, kv)| kv.clone())
                .collect()
        };
        let count = found.len();
        let limit = if request.limit == 0 { count } else { request.limit as usize };
        pb::RangeResponse {
            header: Some(self.header()),
            more: count > limit,
            kvs: found.into_iter().take(limit).collect(),
            count: count as i64,
        }
    }

    fn header(&self) -> pb::ResponseHeader {
        pb::ResponseHeader { cluster_id: 1, revision: self.revision, ..Default::default() }
    }

    fn holds(&self, compare: &pb::Compare) -> bool {
        let Some(pb::compare::TargetUnion::ModRevision(wanted)) = compare.target_union else {
            panic!("only revisions are compared: {compare:?}");
        };
        self.keys.get(&compare.key).map_or(0, |kv| kv.mod_revision) == wanted
    }

    fn apply(&mut self, request: &pb::TxnRequest) -> pb::TxnResponse {
        use pb::request_op::Request;
        let succeeded = request.compare.iter().all(|compare| self.holds(compare));
        let operations = if succeeded { &request.success } else { &request.failure };
        let writes = operations.iter().any(|op| !matches!(op.request, Some(Request::RequestRange(_))));
        if writes {
            self.revision += 1;
        }
        let mut responses = Vec::new();
        for operation in operations {
            let response = match operation.request.clone().unwrap() {
                Request::RequestRange(range) => {
                    Some(pb::response_op::Response::ResponseRange(self.range(&range)))
                }
                Request::RequestPut(pb::PutRequest { key, value, lease }) => {
                    let (revision, kv) = (self.revision, self.keys.get(&key));
                    let create_revision = kv.map_or(revision, |kv| kv.create_revision);
                    let version = kv.map_or(1, |kv| kv.version + 1);
                    let kv = pb::KeyValue {
                        key: key.clone(),
                        create_revision,
                        mod_revision: revision,
                        version,
                        value,
                        lease,
                    };
                    self.events.push(pb::Event { r#type: EventType::Put.into(), kv: Some(kv.clone()) });
                    self.keys.insert(key, kv);
                    None
                }
                Request::RequestDeleteRange(pb::DeleteRangeRequest { key, range_end }) => {
                    let is_meant = |it: &Bytes| {
                        if range_end.is_empty() { *it == key } else { key <= *it && *it < range_end }
                    };
                    for (key, _) in self.keys.extract_if(.., |key, _| is_meant(key)) {
                        let kv = pb::KeyValue { key, mod_revision: self.revision, ..Default::default() };
                        self.events.push(pb::Event { r#type: EventType::Delete.into(), kv: Some(kv) });
                    }
                    None
                }
            };
            responses.push(pb::ResponseOp { response });
        }
        pb::TxnResponse { header: Some(self.header()), succeeded, responses }
    }

    /// Lets a call pass, and does what is late by now.
    fn tick(&mut self) {
        let mut due = Vec::new();
        self.late.retain_mut(|(left, request)| {
            *left = left.saturating_sub(1);
            if *left == 0 {
                due.push(request.clone());
            }
            *left > 0
        });
        for request in due {
            self.apply(&request);
        }
    }
}

impl Kv for FakeEtcd {
    fn range(&self, request: pb::RangeRequest, _: Duration) -> Result<pb::RangeResponse, EtcdError> {
        let mut content = self.content();
        content.tick();
        Ok(content.range(&request))
    }

    fn txn(&self, request: pb::TxnRequest, _: Duration) -> Result<pb::TxnResponse, EtcdError> {
        use pb::request_op::Request;
        let puts = |op: &pb::RequestOp| matches!(op.request, Some(Request::RequestPut(_)));
        let mut content = self.content();
        content.tick();
        if !request.success.iter().any(puts) {
            return Ok(content.apply(&request));
        }
        content.sent.push((request.success.len(), prost::Message::encoded_len(&request)));
        if content.is_full {
            return Err(EtcdError::NoSpace);
        }
        let unknown = || EtcdError::Unknown("lost".to_owned());
        match content.faults.pop_front().unwrap_or(Fault::Pass) {
            Fault::Pass => Ok(content.apply(&request)),
            Fault::LostAnswer => {
                content.apply(&request);
                Err(unknown())
            }
            Fault::LostRequest => Err(unknown()),
            Fault::Late(calls) => {
                content.late.push((calls, request));
                Err(unknown())
            }
            Fault::NoSpaceAfterwards => {
                content.apply(&request);
                content.is_full = true;
                Err(EtcdError::NoSpace)
            }
            Fault::Refused(error) => Err(error),
            Fault::DoneThenDeposed { commits } => {
                content.apply(&request);
                drop(content);
                self.take_over(commits);
                Err(unknown())
            }
            Fault::LostThenDeposed { commits } => {
                drop(content);
                self.take_over(commits);
                Err(unknown())
            }
        }
    }

    fn alarms(&self, _: Duration) -> Result<Vec<pb::AlarmMember>, EtcdError> {
        let alarm = pb::AlarmMember { member_id: 1, alarm: pb::AlarmType::Nospace.into() };
        Ok(self.content().is_full.then_some(alarm).into_iter().collect())
    }

    fn pause(&self, _: Duration) {
        self.content().tick();
    }
}

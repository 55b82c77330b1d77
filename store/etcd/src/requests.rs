//! Short ways to write requests.

use std::fmt;

use prost::bytes::Bytes;

use crate::pb;

/// Reads one key.
pub fn get(key: impl Into<Bytes>) -> pb::RangeRequest {
    pb::RangeRequest { key: key.into(), ..Default::default() }
}

/// Reads the keys from one up to another, at most `limit`.
pub fn range(from: impl Into<Bytes>, to: impl Into<Bytes>, limit: i64) -> pb::RangeRequest {
    pb::RangeRequest { key: from.into(), range_end: to.into(), limit, ..Default::default() }
}

/// Writes one key.
pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> pb::RequestOp {
    put_with_lease(key, value, 0)
}

/// Writes one key that ends with a lease.
pub fn put_with_lease(key: impl Into<Bytes>, value: impl Into<Bytes>, lease: i64) -> pb::RequestOp {
    let put = pb::PutRequest { key: key.into(), value: value.into(), lease };
    pb::RequestOp { request: Some(pb::request_op::Request::RequestPut(put)) }
}

/// Deletes one key.
pub fn delete(key: impl Into<Bytes>) -> pb::RequestOp {
    delete_range(key, Bytes::new())
}

/// Deletes the keys from one up to another.
pub fn delete_range(from: impl Into<Bytes>, to: impl Into<Bytes>) -> pb::RequestOp {
    let delete = pb::DeleteRangeRequest { key: from.into(), range_end: to.into() };
    pb::RequestOp { request: Some(pb::request_op::Request::RequestDeleteRange(delete)) }
}

/// Reads within a transaction.
pub fn read(range: pb::RangeRequest) -> pb::RequestOp {
    pb::RequestOp { request: Some(pb::request_op::Request::RequestRange(range)) }
}

/// Holds while the key was last written at this revision of etcd; 0 while it does not exist.
pub fn modified_at(key: impl Into<Bytes>, revision: i64) -> pb::Compare {
    pb::Compare {
        result: pb::compare::CompareResult::Equal.into(),
        target: pb::compare::CompareTarget::Mod.into(),
        key: key.into(),
        target_union: Some(pb::compare::TargetUnion::ModRevision(revision)),
    }
}

impl pb::TxnResponse {
    /// etcd's revision after the transaction.
    pub fn revision(&self) -> i64 {
        self.header.as_ref().map_or(0, |header| header.revision)
    }

    /// The keys of each read, in order. The answers to other operations are empty.
    pub fn into_reads(self) -> Vec<Vec<pb::KeyValue>> {
        let keys = |op: pb::ResponseOp| match op.response {
            Some(pb::response_op::Response::ResponseRange(range)) => range.kvs,
            _ => Vec::new(),
        };
        self.responses.into_iter().map(keys).collect()
    }
}

impl pb::RangeResponse {
    /// etcd's revision that was read.
    pub fn revision(&self) -> i64 {
        self.header.as_ref().map_or(0, |header| header.revision)
    }
}

/// Alarms for people.
impl fmt::Display for pb::AlarmMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of member {:x}", self.alarm().as_str_name(), self.member_id)
    }
}

//! The responses of a server that consist of records. The records are encoded already, as the store keeps them.
//!
//! On the wire they are the schema's responses: `CreateNodeResponse` and the others with one record, and
//! `ListNodesResponse` and the others with a page of them. All of them number their fields alike.

use bytes::{Buf, BufMut, Bytes};
use prost::encoding::{
    self, DecodeContext, WireType, encode_key, encode_varint, encoded_len_varint, key_len,
};
use prost::{DecodeError, Message};

const RECORD: u32 = 1;
const RESOURCE_VERSION: u32 = 2;
const NEXT_PAGE_TOKEN: u32 = 3;

/// A response with one record.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EncodedRecord(Bytes);

impl EncodedRecord {
    /// The response with this record.
    pub fn of(record: &impl Message) -> Self {
        Self(record.encode_to_vec().into())
    }
}

impl From<Bytes> for EncodedRecord {
    /// The response with this record in the schema's encoding.
    fn from(record: Bytes) -> Self {
        Self(record)
    }
}

/// A response with a page of records.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecordList {
    /// In the schema's encoding.
    pub records: Vec<Bytes>,
    pub resource_version: u64,
    pub next_page_token: String,
}

impl RecordList {
    /// The page with these records.
    pub fn of(records: &[impl Message], resource_version: u64, next_page_token: String) -> Self {
        let records = records.iter().map(|record| record.encode_to_vec().into()).collect();
        Self { records, resource_version, next_page_token }
    }
}

impl From<EncodedRecord> for Bytes {
    /// The record in the schema's encoding.
    fn from(response: EncodedRecord) -> Self {
        response.0
    }
}

impl Message for EncodedRecord {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        put_record(&self.0, buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            RECORD => encoding::bytes::merge(wire_type, &mut self.0, buf, ctx),
            _ => encoding::skip_field(wire_type, tag, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        record_len(&self.0)
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

impl Message for RecordList {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        for record in &self.records {
            put_record(record, buf);
        }
        if self.resource_version != 0 {
            encoding::uint64::encode(RESOURCE_VERSION, &self.resource_version, buf);
        }
        if !self.next_page_token.is_empty() {
            encoding::string::encode(NEXT_PAGE_TOKEN, &self.next_page_token, buf);
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            RECORD => encoding::bytes::merge_repeated(wire_type, &mut self.records, buf, ctx),
            RESOURCE_VERSION => encoding::uint64::merge(wire_type, &mut self.resource_version, buf, ctx),
            NEXT_PAGE_TOKEN => encoding::string::merge(wire_type, &mut self.next_page_token, buf, ctx),
            _ => encoding::skip_field(wire_type, tag, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        let version = if self.resource_version == 0 {
            0
        } else {
            encoding::uint64::encoded_len(RESOURCE_VERSION, &self.resource_version)
        };
        let token = if self.next_page_token.is_empty() {
            0
        } else {
            encoding::string::encoded_len(NEXT_PAGE_TOKEN, &self.next_page_token)
        };
        self.records.iter().map(record_len).sum::<usize>() + version + token
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

fn record_len(record: &Bytes) -> usize {
    key_len(RECORD) + encoded_len_varint(record.len() as u64) + record.len()
}

fn put_record(record: &Bytes, buf: &mut impl BufMut) {
    encode_key(RECORD, WireType::LengthDelimited, buf);
    encode_varint(record.len() as u64, buf);
    buf.put_slice(record);
}

#[cfg(test)]
mod tests {
    use muster_proto::pb;

    use super::*;

    fn node(name: &str) -> pb::Node {
        let metadata = pb::Metadata { name: name.to_owned(), ..Default::default() };
        pb::Node { metadata: Some(metadata), ..Default::default() }
    }

    #[test]
    fn a_record_is_sent_as_the_response_of_the_schema() {
        // The second has the default value in all fields, and is still there.
        for node in [node("a"), pb::Node::default()] {
            let sent = EncodedRecord::of(&node);
            let expected = pb::CreateNodeResponse { node: Some(node) };
            assert_eq!(sent.encode_to_vec(), expected.encode_to_vec());
            assert_eq!(sent.encoded_len(), expected.encoded_len());
            assert_eq!(EncodedRecord::decode(&*sent.encode_to_vec()), Ok(sent));
        }
    }

    #[test]
    fn a_page_is_sent_as_the_response_of_the_schema() {
        for (names, resource_version, next_page_token) in
            [(vec![], 0, ""), (vec!["a", "b"], 300, ""), (vec!["a"], 7, "more")]
        {
            let nodes: Vec<pb::Node> = names.into_iter().map(node).collect();
            let next_page_token = next_page_token.to_owned();
            let sent = RecordList::of(&nodes, resource_version, next_page_token.clone());
            let expected = pb::ListNodesResponse { nodes, resource_version, next_page_token };
            assert_eq!(sent.encode_to_vec(), expected.encode_to_vec());
            assert_eq!(sent.encoded_len(), expected.encoded_len());
            assert_eq!(RecordList::decode(&*sent.encode_to_vec()), Ok(sent));
        }
    }
}

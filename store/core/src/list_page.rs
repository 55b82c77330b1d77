//! Lists, whole or in pages of one revision.
//!
//! Current records come from memory, older versions from the ledger: [`PageReader`] collects the page and says what the
//! caller must read from the ledger.

use std::ops::Bound;

use bytes::Bytes;
use muster_proto::record::Kind;

use crate::error::Expired;
use crate::history::Revision;
use crate::memory::{Memory, RecordVersion};
use crate::namespaced_name::NamespacedName;
use crate::selectors::Selectors;

/// The largest page in bytes, whatever limit was requested: gRPC clients refuse messages above 4 MiB by default.
const PAGE_BYTES: usize = 3 << 20;

/// How many records are examined before the lock on memory is released, so that the writer can get it.
const CHUNK: usize = 1000;

/// The revision at which a list is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListVersion {
    Latest,
    NotOlderThan(Revision),
    Exact(Revision),
    /// The revision of the previous page, after its last key.
    Continue(PageToken),
}

/// A list request, validated.
#[derive(Debug, Clone)]
pub struct ListRequest {
    pub kind: Kind,
    pub selectors: Selectors,
    pub version: ListVersion,
    /// The most records of a page; 0 means no limit.
    pub limit: usize,
    /// A hash of kind and selectors; a page token is valid only for the same hash.
    pub query_hash: u32,
    /// Whether leases show renewals after the list's revision: for a reader yes; for a watch no, since they follow as
    /// events.
    pub later_renewals: bool,
}

/// One page of a list.
#[derive(Debug)]
pub struct Page {
    pub records: Vec<Bytes>,
    pub revision: Revision,
    pub next: Option<PageToken>,
}

/// Where the next page begins; opaque to clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageToken {
    revision: Revision,
    after: NamespacedName,
    query_hash: u32,
}

/// An older version to read from the ledger.
#[derive(Debug, Clone)]
pub struct LedgerRead {
    /// Its place in the page.
    pub index: usize,
    pub key: NamespacedName,
    pub revision: Revision,
    /// The change that replaced or deleted this version.
    pub superseded_by: Revision,
}

impl ListRequest {
    /// Starts to read a page; fixes the revision it is read at.
    pub fn begin(&self, memory: &Memory) -> PageReader<'_> {
        let (revision, after) = match &self.version {
            ListVersion::Latest | ListVersion::NotOlderThan(_) => (memory.head(), None),
            ListVersion::Exact(revision) => (*revision, None),
            ListVersion::Continue(token) => (token.revision, Some(token.after.clone())),
        };
        let page = Page { records: Vec::new(), revision, next: None };
        PageReader {
            list: self,
            page,
            from_ledger: Vec::new(),
            bytes: 0,
            last_examined: after,
            last_included: None,
        }
    }
}

/// A page being read in chunks, so that a long list does not keep the writer from memory.
pub struct PageReader<'l> {
    list: &'l ListRequest,
    page: Page,
    from_ledger: Vec<LedgerRead>,
    bytes: usize,
    /// The last key examined, by this page or the previous one.
    last_examined: Option<NamespacedName>,
    /// The last key included in this page.
    last_included: Option<NamespacedName>,
}

impl PageReader<'_> {
    /// Examines the next records; `true` when the page is complete.
    pub fn read_chunk(&mut self, memory: &Memory) -> Result<bool, Expired> {
        let (list, revision) = (self.list, self.page.revision);
        // A page token beyond the head was made before the store was restored from a backup.
        if revision < memory.compacted() || revision > memory.head() {
            return Err(Expired { requested: revision, oldest: memory.compacted() });
        }
        let previous = self.last_examined.take();
        let from = previous.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let (mut last, mut examined, mut more) = (None, None, false);
        for (count, (key, found)) in
            candidates(memory, list.kind, &list.selectors, from, revision).enumerate()
        {
            if count == CHUNK {
                more = true;
                break;
            }
            examined = Some(key);
            let (record, len) = match &found {
                RecordVersion::Current(current) => {
                    let record = match list.later_renewals {
                        true => memory.with_newest_renewal(list.kind, current),
                        false => memory.with_renewal_up_to(list.kind, current, revision),
                    };
                    if !list.selectors.matches(list.kind, key, &record) {
                        continue;
                    }
                    let len = record.len();
                    (record, len)
                }
                RecordVersion::InLedger { bytes, .. } => (Bytes::new(), *bytes),
            };
            let full = self.page.records.len() == list.limit && list.limit > 0;
            if let Some(last) = last.or(self.last_included.as_ref())
                && (full || self.bytes + len > PAGE_BYTES)
            {
                self.page.next =
                    Some(PageToken { revision, after: last.clone(), query_hash: list.query_hash });
                return Ok(true);
            }
            if let RecordVersion::InLedger { revision, superseded_by, .. } = found {
                let (index, key) = (self.page.records.len(), key.clone());
                self.from_ledger.push(LedgerRead { index, key, revision, superseded_by });
            }
            self.page.records.push(record);
            self.bytes += len;
            last = Some(key);
        }
        self.last_included = last.cloned().or(self.last_included.take());
        self.last_examined = examined.cloned();
        Ok(!more)
    }

    /// The page, and the versions that must be read from the ledger and passed to [`Page::fill`].
    pub fn finish(self) -> (Page, Vec<LedgerRead>) {
        (self.page, self.from_ledger)
    }
}

impl Page {
    /// Fills in the versions read from the ledger; `None` for those that the selectors do not match.
    pub fn fill(&mut self, read: Vec<(usize, Option<Bytes>)>) {
        for (index, record) in read {
            self.records[index] = record.unwrap_or_default();
        }
        // An encoded record is never empty, since it has a name.
        self.records.retain(|record| !record.is_empty());
    }
}

/// The records that may match the selectors, as they were at a revision, in key order; by an index where one fits.
fn candidates<'m>(
    memory: &'m Memory,
    kind: Kind,
    selectors: &'m Selectors,
    from: Bound<&NamespacedName>,
    at: Revision,
) -> Box<dyn Iterator<Item = (&'m NamespacedName, RecordVersion)> + 'm> {
    match (kind, selectors.node(kind)) {
        (Kind::Pod, Some(node)) => {
            Box::new(memory.pods_on_node(node, from).filter_map(move |key| memory.version_at(kind, key, at)))
        }
        (Kind::Node, Some(name)) => {
            let key = NamespacedName::new("", name);
            let is_past = matches!(from, Bound::Excluded(after) if key <= *after);
            Box::new(memory.version_at(kind, &key, at).filter(|_| !is_past).into_iter())
        }
        _ => {
            let start = NamespacedName::start_of(&selectors.namespace);
            let from = if from == Bound::Unbounded { Bound::Included(&start) } else { from };
            let namespace = selectors.namespace.as_str();
            Box::new(
                memory
                    .scan_at(kind, from, at)
                    .take_while(move |(key, _)| namespace.is_empty() || key.namespace() == namespace),
            )
        }
    }
}

impl PageToken {
    /// The revision of the list.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Reads a token back; it must belong to the same query.
    pub fn parse(text: &str, query_hash: u32) -> Result<Self, &'static str> {
        const NOT_OURS: &str = "is not a token of this store";
        let bytes = unhex(text).ok_or(NOT_OURS)?;
        let (body, checksum) = bytes.split_last_chunk::<4>().ok_or(NOT_OURS)?;
        if crc32fast::hash(body) != u32::from_be_bytes(*checksum) {
            return Err(NOT_OURS);
        }
        let (revision, rest) = body.split_first_chunk::<8>().ok_or(NOT_OURS)?;
        let (made_for, key) = rest.split_first_chunk::<4>().ok_or(NOT_OURS)?;
        if u32::from_be_bytes(*made_for) != query_hash {
            return Err(
                "belongs to a list with other selectors: repeat the request as it was for the first page",
            );
        }
        let key = std::str::from_utf8(key).ok().and_then(|key| key.split_once('\0')).ok_or(NOT_OURS)?;
        Ok(Self {
            revision: u64::from_be_bytes(*revision),
            after: NamespacedName::new(key.0, key.1),
            query_hash,
        })
    }
}

impl std::fmt::Display for PageToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut body = self.revision.to_be_bytes().to_vec();
        body.extend_from_slice(&self.query_hash.to_be_bytes());
        body.extend_from_slice(self.after.namespace().as_bytes());
        body.push(0);
        body.extend_from_slice(self.after.name().as_bytes());
        let checksum = crc32fast::hash(&body);
        body.extend_from_slice(&checksum.to_be_bytes());
        body.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Commit, StoredChange};
    use muster_mutation::{cases, texts};
    use muster_proto::pb;
    use proptest::prelude::*;
    use prost::Message;

    #[test]
    fn a_page_token_parses_back_and_a_changed_one_does_not() {
        let token = PageToken { revision: 77, after: NamespacedName::new("ns", "name"), query_hash: 5 };
        let text = token.to_string();
        assert_eq!(PageToken::parse(&text, 5), Ok(token));
        assert!(PageToken::parse(&text, 6).unwrap_err().contains("other selectors"));
        let mut tampered = text.clone();
        tampered.replace_range(3..4, if &text[3..4] == "0" { "1" } else { "0" });
        for bad in ["", "zz", "abc", "00", &tampered, &text[..text.len() - 2]] {
            assert!(PageToken::parse(bad, 5).is_err(), "{bad:?}");
        }
    }

    fn token() -> PageToken {
        PageToken { revision: 77, after: NamespacedName::new("ns", "name"), query_hash: 5 }
    }

    proptest! {
        #![proptest_config(cases())]

        #[test]
        fn no_text_but_the_token_itself_is_a_token(text in texts(&[&token().to_string()])) {
            if let Ok(parsed) = PageToken::parse(&text, 5) {
                prop_assert_eq!(parsed, token());
                prop_assert_eq!(text.to_lowercase(), token().to_string());
            }
        }
    }

    /// Nodes, all written by one commit.
    fn nodes(count: usize, base: Revision) -> Commit {
        let stored = |i: usize| {
            let metadata = pb::Metadata { name: format!("n{i:05}"), ..Default::default() };
            let record = pb::Node { metadata: Some(metadata), ..Default::default() };
            StoredChange {
                kind: Kind::Node,
                namespace: String::new(),
                name: format!("n{i:05}"),
                record: record.encode_to_vec().into(),
                deleted: false,
                previous: 0,
                previous_record: None,
                at_millis: 0,
                traceparent: String::new(),
                lease_id: 0,
            }
        };
        let changes: Vec<_> = (0..count).map(|i| (base + 1 + i as u64, stored(i))).collect();
        Commit { base, head: base + count as u64, changes, ..Default::default() }
    }

    #[test]
    fn a_long_list_lets_the_writer_commit_and_keeps_to_its_revision() {
        const FLEET: usize = 2 * CHUNK + 500;
        let mut memory = Memory::default();
        memory.apply_commit(&nodes(FLEET, 0));
        let none = Selectors { labels: "zone=a".parse().unwrap(), ..Default::default() };
        for (selectors, expected) in [(Selectors::default(), FLEET), (none, 0)] {
            let list = ListRequest {
                kind: Kind::Node,
                selectors,
                version: ListVersion::Latest,
                limit: 0,
                query_hash: 0,
                later_renewals: true,
            };
            let head = memory.head();
            let mut reader = list.begin(&memory);
            assert!(!reader.read_chunk(&memory).unwrap());
            // The writer commits in between: one new node, and a change of each other.
            memory.apply_commit(&nodes(FLEET + 1, head));
            assert!(!reader.read_chunk(&memory).unwrap());
            assert!(reader.read_chunk(&memory).unwrap());
            let (page, from_ledger) = reader.finish();
            assert_eq!((page.revision, page.next), (head, None));
            // Records examined before that commit come from memory; the rest are older versions, in the ledger.
            assert_eq!(from_ledger.len(), FLEET - CHUNK);
            assert_eq!(page.records.len(), expected.max(from_ledger.len()));
            memory = Memory::default();
            memory.apply_commit(&nodes(FLEET, 0));
        }
    }
}

//! Lists, whole or in pages that keep to one moment.

use std::ops::Bound;

use bytes::Bytes;
use muster_proto::record::Kind;

use crate::error::Expired;
use crate::history::Revision;
use crate::memory::{Memory, RecordVersion};
use crate::namespaced_name::NamespacedName;
use crate::selectors::Selectors;

/// A page ends here even if more was asked for: clients refuse messages above
/// 4 MiB unless they are told otherwise.
const PAGE_BYTES: usize = 3 << 20;

/// How many records are looked at before others have their turn with memory.
const CHUNK: usize = 1000;

/// The moment a list is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListVersion {
    Latest,
    NotOlderThan(Revision),
    Exact(Revision),
    /// The moment of the page before, and its last key.
    Continue(PageToken),
}

/// What a list asks for.
#[derive(Debug, Clone)]
pub struct ListRequest {
    pub kind: Kind,
    pub selectors: Selectors,
    pub version: ListVersion,
    /// 0 means all.
    pub limit: usize,
    /// What a token of this list is tied to.
    pub query_hash: u32,
    /// Whether leases show renewals that came after the list's moment. A reader
    /// wants them; a watcher will be told of them.
    pub later_renewals: bool,
}

/// One page of a list.
#[derive(Debug)]
pub struct Page {
    pub records: Vec<Bytes>,
    pub revision: Revision,
    pub next: Option<PageToken>,
}

/// Where the next page begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageToken {
    revision: Revision,
    after: NamespacedName,
    query_hash: u32,
}

/// A record of the past that a page waits for: its place, key and revision.
pub type LedgerRead = (usize, NamespacedName, Revision);

impl ListRequest {
    /// Begins to read a page, at the moment that it is of.
    pub fn begin(&self, memory: &Memory) -> PageReader<'_> {
        let (revision, after) = match &self.version {
            ListVersion::Latest | ListVersion::NotOlderThan(_) => (memory.head(), None),
            ListVersion::Exact(revision) => (*revision, None),
            ListVersion::Continue(token) => (token.revision, Some(token.after.clone())),
        };
        let page = Page { records: Vec::new(), revision, next: None };
        PageReader { list: self, page, past: Vec::new(), bytes: 0, last_examined: after, last_included: None }
    }
}

/// A page that is being read, some records at a time: nobody keeps the writer from
/// memory for as long as it takes to look at a whole fleet.
pub struct PageReader<'l> {
    list: &'l ListRequest,
    page: Page,
    past: Vec<LedgerRead>,
    bytes: usize,
    /// The last key that was looked at, here or by the page before.
    last_examined: Option<NamespacedName>,
    /// The last key that was taken.
    last_included: Option<NamespacedName>,
}

impl PageReader<'_> {
    /// Looks at the next records; `true` when the page is read.
    pub fn read_chunk(&mut self, memory: &Memory) -> Result<bool, Expired> {
        let (list, revision) = (self.list, self.page.revision);
        // A token from beyond the head is of a store that was since restored.
        if revision < memory.compacted() || revision > memory.head() {
            return Err(Expired { requested: revision, oldest: memory.compacted() });
        }
        let seen = self.last_examined.take();
        let from = seen.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let (mut last, mut looked, mut more) = (None, None, false);
        for (looked_at, (key, found)) in
            candidates(memory, list.kind, &list.selectors, from, revision).enumerate()
        {
            if looked_at == CHUNK {
                more = true;
                break;
            }
            looked = Some(key);
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
                self.page.next = Some(PageToken { revision, after: last.clone(), query_hash: list.query_hash });
                return Ok(true);
            }
            if let RecordVersion::InLedger { revision, .. } = found {
                self.past.push((self.page.records.len(), key.clone(), revision));
            }
            self.page.records.push(record);
            self.bytes += len;
            last = Some(key);
        }
        self.last_included = last.cloned().or(self.last_included.take());
        self.last_examined = looked.cloned();
        Ok(!more)
    }

    /// The page, and what of it lies in the ledger.
    pub fn finish(self) -> (Page, Vec<LedgerRead>) {
        (self.page, self.past)
    }
}

impl Page {
    /// Puts in what was read from the ledger; `None` was not asked for.
    pub fn fill(&mut self, read: Vec<(usize, Option<Bytes>)>) {
        for (place, record) in read {
            self.records[place] = record.unwrap_or_default();
        }
        // No record is empty: each has a name.
        self.records.retain(|record| !record.is_empty());
    }
}

/// The records that can match a selectors as they were at a revision, in order, by
/// the best index there is.
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
        Ok(Self { revision: u64::from_be_bytes(*revision), after: NamespacedName::new(key.0, key.1), query_hash })
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
    use muster_proto::pb;
    use prost::Message;

    #[test]
    fn a_token_comes_back_and_a_changed_one_does_not() {
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
                at_millis: 0,
                traceparent: String::new(),
                lease_id: 0,
            }
        };
        let changes: Vec<_> = (0..count).map(|i| (base + 1 + i as u64, stored(i))).collect();
        Commit { base, head: base + count as u64, changes, ..Default::default() }
    }

    #[test]
    fn a_long_list_leaves_the_writer_its_turns_and_keeps_to_its_moment() {
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
            // The writer comes in between, with a node more and others changed.
            memory.apply_commit(&nodes(FLEET + 1, head));
            assert!(!reader.read_chunk(&memory).unwrap());
            assert!(reader.read_chunk(&memory).unwrap());
            let (page, past) = reader.finish();
            assert_eq!((page.revision, page.next), (head, None));
            // What was looked at before is as it was then; the rest lies in the ledger.
            assert_eq!(past.len(), FLEET - CHUNK);
            assert_eq!(page.records.len(), expected.max(past.len()));
            memory = Memory::default();
            memory.apply_commit(&nodes(FLEET, 0));
        }
    }
}

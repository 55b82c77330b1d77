//! A fingerprint of all records and renewals: how many there are, and a hash of their contents.
//!
//! The hash is a sum of one hash per record, so it can be kept up to date as records change and does not depend on their
//! order. Whatever was loaded from disk is complete and unchanged if its fingerprint is the one that was committed.

use muster_proto::record::Kind;
use xxhash_rust::xxh3::Xxh3;

use crate::history::Revision;
use crate::lease_table::Renewal;
use crate::namespaced_name::NamespacedName;

/// The length of an encoded fingerprint. Frames and checkpoints of all versions have fingerprints of this length.
pub const LEN: usize = 8 * (COUNTS + 1) + 2 * 16;
/// The counts in an encoded fingerprint, of 8 bytes each. Kinds that were added later have the upper halves, which are
/// 0 in older files: there are no 2³² records of a kind.
const COUNTS: usize = 5;

const HALF: u64 = u32::MAX as u64;

/// The number of records of each kind and of renewals, and the sums of their hashes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fingerprint {
    counts: [u64; Kind::ALL.len()],
    renewal_count: u64,
    records: u128,
    renewals: u128,
}

impl Fingerprint {
    pub fn add_record(
        &mut self,
        kind: Kind,
        key: &NamespacedName,
        at: Revision,
        lease_id: u32,
        record: &[u8],
    ) {
        self.add_hashed(kind, RecordHash::of(kind, key, at, lease_id, record));
    }

    pub fn remove_record(
        &mut self,
        kind: Kind,
        key: &NamespacedName,
        at: Revision,
        lease_id: u32,
        record: &[u8],
    ) {
        self.remove_hashed(kind, RecordHash::of(kind, key, at, lease_id, record));
    }

    pub fn add_hashed(&mut self, kind: Kind, hash: RecordHash) {
        let count = &mut self.counts[kind as usize - 1];
        *count = count.wrapping_add(1);
        self.records = self.records.wrapping_add(hash.0);
    }

    pub fn remove_hashed(&mut self, kind: Kind, hash: RecordHash) {
        let count = &mut self.counts[kind as usize - 1];
        *count = count.wrapping_sub(1);
        self.records = self.records.wrapping_sub(hash.0);
    }

    pub fn add_renewal(&mut self, lease_id: u32, renewal: &Renewal) {
        self.renewal_count = self.renewal_count.wrapping_add(1);
        self.renewals = self.renewals.wrapping_add(renewal_hash(lease_id, renewal));
    }

    pub fn remove_renewal(&mut self, lease_id: u32, renewal: &Renewal) {
        self.renewal_count = self.renewal_count.wrapping_sub(1);
        self.renewals = self.renewals.wrapping_sub(renewal_hash(lease_id, renewal));
    }

    pub fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let (first, later) = self.counts.split_at(COUNTS);
        let later = later.iter().copied().chain(std::iter::repeat(0));
        let counts = first.iter().zip(later).map(|(count, later)| (later << 32) | (count & HALF));
        for (slot, count) in bytes.chunks_exact_mut(8).zip(counts.chain([self.renewal_count])) {
            slot.copy_from_slice(&count.to_be_bytes());
        }
        let sums = &mut bytes[LEN - 32..];
        sums[..16].copy_from_slice(&self.records.to_be_bytes());
        sums[16..].copy_from_slice(&self.renewals.to_be_bytes());
        bytes
    }

    /// `None` if the bytes are not an encoded fingerprint: they count records of a kind that there is not.
    pub fn decode(bytes: &[u8; LEN]) -> Option<Self> {
        let mut counts = bytes.chunks_exact(8).map(|count| {
            let mut number = [0; 8];
            number.copy_from_slice(count);
            u64::from_be_bytes(number)
        });
        let sum = |from: usize| {
            let mut number = [0; 16];
            number.copy_from_slice(&bytes[from..from + 16]);
            u128::from_be_bytes(number)
        };
        let packed: [u64; COUNTS] = std::array::from_fn(|_| counts.next().unwrap_or_default());
        if packed[Kind::ALL.len() - COUNTS..].iter().any(|count| count >> 32 != 0) {
            return None;
        }
        let count = |i: usize| if i < COUNTS { packed[i] & HALF } else { packed[i - COUNTS] >> 32 };
        Some(Self {
            counts: std::array::from_fn(count),
            renewal_count: counts.next().unwrap_or_default(),
            records: sum(LEN - 32),
            renewals: sum(LEN - 16),
        })
    }

    /// How another fingerprint differs, in words for an operator; `None` if it does not.
    pub fn difference(&self, found: &Fingerprint) -> Option<String> {
        if self == found {
            return None;
        }
        let kinds = Kind::ALL.iter().zip(self.counts.iter().zip(&found.counts));
        let mut differences: Vec<String> = kinds
            .filter(|(_, (wanted, found))| wanted != found)
            .map(|(kind, (wanted, found))| format!("{found} of {wanted} records of kind {kind}"))
            .collect();
        if self.renewal_count != found.renewal_count {
            differences.push(format!("{} of {} renewals", found.renewal_count, self.renewal_count));
        }
        if differences.is_empty() {
            differences.push("all records by number, but not with the content that was written".to_owned());
        }
        Some(format!("they hold {}", differences.join(", ")))
    }

    /// The number of records of all kinds.
    pub fn records(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// What one record adds to a fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHash(pub u128);

impl RecordHash {
    pub fn of(kind: Kind, key: &NamespacedName, at: Revision, lease_id: u32, record: &[u8]) -> Self {
        let mut hasher = Xxh3::new();
        hasher.update(&[kind as u8]);
        hasher.update(&at.to_be_bytes());
        hasher.update(&lease_id.to_be_bytes());
        // Names hold no zero byte, so different keys cannot yield the same bytes.
        hasher.update(key.namespace().as_bytes());
        hasher.update(&[0]);
        hasher.update(key.name().as_bytes());
        hasher.update(&[0]);
        hasher.update(record);
        Self(hasher.digest128())
    }
}

fn renewal_hash(lease_id: u32, renewal: &Renewal) -> u128 {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&lease_id.to_be_bytes());
    bytes[4..8].copy_from_slice(&renewal.status_age_millis.to_be_bytes());
    bytes[8..16].copy_from_slice(&renewal.revision.to_be_bytes());
    bytes[16..24].copy_from_slice(&renewal.at_micros.to_be_bytes());
    bytes[24..].copy_from_slice(&renewal.status_digest.to_be_bytes());
    xxhash_rust::xxh3::xxh3_128(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> NamespacedName {
        NamespacedName::new("ns", name)
    }

    const RENEWAL: Renewal = Renewal { revision: 5, at_micros: 6, status_digest: 7, status_age_millis: 8 };

    #[test]
    fn order_does_not_matter_and_removal_undoes_addition() {
        let mut one = Fingerprint::default();
        one.add_record(Kind::Pod, &key("a"), 1, 0, b"x");
        one.add_record(Kind::Node, &key("b"), 2, 0, b"y");
        one.add_renewal(3, &RENEWAL);
        let mut other = Fingerprint::default();
        other.add_renewal(3, &RENEWAL);
        other.add_record(Kind::Pod, &key("c"), 9, 0, b"z");
        other.add_record(Kind::Node, &key("b"), 2, 0, b"y");
        other.add_record(Kind::Pod, &key("a"), 1, 0, b"x");
        other.remove_record(Kind::Pod, &key("c"), 9, 0, b"z");
        assert_eq!(one, other);
        assert_eq!(Fingerprint::decode(&one.encode()), Some(one));
        other.remove_renewal(3, &RENEWAL);
        assert_eq!(one.difference(&other).unwrap(), "they hold 0 of 1 renewals");
    }

    #[test]
    fn kinds_that_were_added_later_are_0_in_older_files_and_change_none_of_the_others() {
        let mut old = Fingerprint::default();
        for (kind, count) in Kind::ALL.into_iter().zip([1, 2, 3, 4, 5]) {
            for number in 0..count {
                old.add_record(kind, &key("a"), number, 0, b"x");
            }
        }
        old.add_renewal(3, &RENEWAL);
        let mut written = Vec::new();
        for count in [1u64, 2, 3, 4, 5, 1] {
            written.extend(count.to_be_bytes());
        }
        assert_eq!(old.encode()[..48], written, "as the first version with fingerprints wrote it");
        let mut new = old;
        for (kind, count) in [
            (Kind::JoinToken, 6),
            (Kind::CertificateRequest, 7),
            (Kind::Revocation, 8),
            (Kind::PriorityClass, 9),
        ] {
            for number in 0..count {
                new.add_record(kind, &key("a"), number, 0, b"x");
            }
        }
        let read = Fingerprint::decode(&new.encode()).unwrap();
        assert_eq!((read, read.records()), (new, 45));
        assert_eq!(Fingerprint::decode(&old.encode()).unwrap().records(), 15);
        let mut unknown = new.encode();
        unknown[4 * 8] = 1;
        assert_eq!(Fingerprint::decode(&unknown), None, "records of a kind that there is not");
    }

    #[test]
    fn every_part_of_a_record_and_of_a_renewal_counts() {
        let of = |kind, name: &str, at, lease_id, record: &[u8]| {
            let mut fingerprint = Fingerprint::default();
            fingerprint.add_record(kind, &key(name), at, lease_id, record);
            fingerprint
        };
        let wanted = of(Kind::Lease, "a", 1, 2, b"x");
        for other in [
            of(Kind::Pod, "a", 1, 2, b"x"),
            of(Kind::Lease, "b", 1, 2, b"x"),
            of(Kind::Lease, "a", 2, 2, b"x"),
            of(Kind::Lease, "a", 1, 3, b"x"),
            of(Kind::Lease, "a", 1, 2, b"y"),
            of(Kind::Lease, "a", 1, 2, b""),
        ] {
            assert!(wanted.difference(&other).is_some(), "{other:?}");
        }
        let of = |lease_id, renewal| {
            let mut fingerprint = Fingerprint::default();
            fingerprint.add_renewal(lease_id, &renewal);
            fingerprint
        };
        let wanted = of(1, RENEWAL);
        for other in [
            of(2, RENEWAL),
            of(1, Renewal { revision: 6, ..RENEWAL }),
            of(1, Renewal { at_micros: 7, ..RENEWAL }),
            of(1, Renewal { status_digest: 8, ..RENEWAL }),
            of(1, Renewal { status_age_millis: 9, ..RENEWAL }),
        ] {
            assert!(wanted.difference(&other).is_some(), "{other:?}");
        }
    }
}

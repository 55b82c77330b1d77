use std::path::PathBuf;

use prost::Message;

use super::super::*;
use super::value_codec::encode_in;
use super::*;

const CACHE: u64 = 1 << 20;

fn stored(kind: Kind, name: &str, version: Revision, previous: Revision, deleted: bool) -> StoredChange {
    use muster_proto::pb;
    let metadata = pb::Metadata {
        name: name.to_owned(),
        namespace: if kind == Kind::Node { String::new() } else { "ns".to_owned() },
        resource_version: version,
        annotations: [("long".to_owned(), "x".repeat(5_000))].into(),
        ..Default::default()
    };
    let record = match kind {
        Kind::Lease => pb::Lease { metadata: Some(metadata.clone()), spec: None }.encode_to_vec(),
        _ => pb::Node { metadata: Some(metadata.clone()), ..Default::default() }.encode_to_vec(),
    };
    StoredChange {
        kind,
        namespace: metadata.namespace,
        name: name.to_owned(),
        record: record.into(),
        deleted,
        previous,
        previous_record: None,
        at_millis: 0,
        traceparent: String::new(),
        lease_id: 0,
    }
}

fn renewal(at_micros: i64) -> StoredRenewal {
    StoredRenewal { lease_id: 0, status_age_millis: 1, status_digest: 2, at_micros }
}

/// Entries of sled's tree for a value.
fn entries(key: &[u8], value: &[u8], piece: usize) -> Vec<JournalChange> {
    let (first, following) = encode_in(piece, value);
    let first = JournalChange { key: [&[VALUES], key].concat(), value: Some(first) };
    let following = following.into_iter().zip(0u32..).map(|(value, index)| JournalChange {
        key: [&[PIECES], key, &index.to_be_bytes()].concat(),
        value: Some(value),
    });
    std::iter::once(first).chain(following).collect()
}

/// A directory as an older version wrote it: the node `a` was written twice, `b` deleted, and a lease renewed three
/// times, of which one renewal is folded into its value. The last transaction is only in the journal.
fn older(format: u32) -> (tempfile::TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("data");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("MUSTER_FORMAT"), format!("muster-store {format} used\n")).unwrap();
    let piece = if format == 1 { 48 * 1024 } else { 2048 };
    let key = |prefix: u8, revision: u64| [&[prefix][..], &revision.to_be_bytes()].concat();
    let change = |revision: u64, change: StoredChange| {
        let mut value = Vec::new();
        change.encode(false, &mut value);
        entries(&key(CHANGES, revision), &value, piece)
    };
    let pack = |first: u64, pack: &[StoredRenewal]| {
        let mut value = Vec::new();
        StoredRenewal::encode_pack(pack, &mut value);
        entries(&key(RENEWALS, first), &value, piece)
    };
    let head = |revision: u64| entries(HEAD, &revision.to_be_bytes(), piece);
    let before = [
        change(1, stored(Kind::Node, "a", 1, 0, false)),
        change(2, stored(Kind::Node, "b", 2, 0, false)),
        // A renewal at 5 is folded into the lease that was written at 3.
        change(3, stored(Kind::Lease, "l", 5, 0, false)),
        change(4, stored(Kind::Node, "a", 4, 1, false)),
        pack(6, &[renewal(60), renewal(70)]),
        head(7),
    ];
    let last = [change(8, stored(Kind::Node, "b", 8, 2, true)), pack(9, &[renewal(90)]), head(9)].concat();
    let db = sled::Config::new().path(&directory).flush_every_ms(None).open().unwrap();
    let put = |changes: &[JournalChange]| {
        for change in changes {
            db.insert(&change.key, change.value.clone().unwrap()).unwrap();
        }
    };
    before.iter().for_each(|changes| put(changes));
    if format < 3 {
        put(&last);
    } else {
        db.insert(APPLIED, &6u64.to_be_bytes()).unwrap();
        let generation = if format == 3 { 0 } else { 77 };
        let body = JournalEntry { number: 7, changes: last, generation }.encode_to_vec();
        let checked = [&(body.len() as u64).to_be_bytes()[..], &body].concat();
        let journal = [&crc32fast::hash(&checked).to_be_bytes()[..], &checked].concat();
        fs::write(directory.join(OLD_JOURNAL), journal).unwrap();
    }
    db.flush().unwrap();
    drop(db);
    (root, directory)
}

fn check_converted(directory: &Path, context: &str) {
    let ledger = EmbeddedLedger::open(directory, CACHE).unwrap();
    let memory = ledger.load(&mut |_| ()).unwrap();
    assert_eq!((memory.head(), memory.compacted()), (9, 9), "{context}");
    let node = memory.get(Kind::Node, &stored(Kind::Node, "a", 4, 1, false).key()).unwrap();
    assert_eq!((node.revision, &node.record), (4, &stored(Kind::Node, "a", 4, 1, false).record), "{context}");
    assert!(memory.get(Kind::Node, &stored(Kind::Node, "b", 8, 2, true).key()).is_none());
    let lease = memory.get(Kind::Lease, &stored(Kind::Lease, "l", 5, 0, false).key()).unwrap();
    let decoded = muster_proto::pb::Lease::decode(&*lease.record).unwrap();
    let renewed = decoded.spec.unwrap().renew_time.unwrap();
    assert_eq!((lease.revision, renewed.nanos), (9, 90_000), "{context}: the newest renewal");
    let names: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name == "db" || name == REPLACED || name == CONVERTED), "{names:?}");
}

#[test]
fn directories_of_the_formats_1_to_4_are_converted() {
    for format in 1..=4 {
        let (_root, directory) = older(format);
        check_converted(&directory, &format!("format {format}"));
        check_converted(&directory, &format!("format {format}, opened again"));
    }
}

#[test]
fn an_interrupted_conversion_is_begun_again_or_finished() {
    // Before the new files were complete.
    let (_root, directory) = older(4);
    fs::create_dir(directory.join(COPY)).unwrap();
    fs::create_dir(directory.join(CONVERTED)).unwrap();
    fs::write(directory.join(CONVERTED).join("half"), "written").unwrap();
    check_converted(&directory, "begun again");

    // After that, while the old ones were being moved away.
    let (_root, directory) = older(4);
    let memory = read_copy(&directory, CACHE).unwrap();
    EmbeddedLedger::import(&directory.join(CONVERTED), Uuid::new_v4(), memory, CACHE).unwrap();
    fs::create_dir(directory.join(REPLACED)).unwrap();
    fs::rename(directory.join(LOG), directory.join(REPLACED).join(LOG)).unwrap();
    check_converted(&directory, "finished");
}

#[test]
fn a_directory_that_cannot_be_read_whole_is_left_as_it_is() {
    let (_root, directory) = older(4);
    let journal = directory.join(OLD_JOURNAL);
    let mut entry = JournalEntry::decode(&fs::read(&journal).unwrap()[12..]).unwrap();
    entry.number = 9;
    let body = entry.encode_to_vec();
    let checked = [&(body.len() as u64).to_be_bytes()[..], &body].concat();
    fs::write(&journal, [&crc32fast::hash(&checked).to_be_bytes()[..], &checked].concat()).unwrap();
    let before = fs::read(directory.join(LOG)).unwrap();
    let refused = EmbeddedLedger::open(&directory, CACHE).err().unwrap().to_string();
    assert!(refused.contains("the journal goes on with transaction 9, the rest ends with 6"), "{refused}");
    assert_eq!(fs::read(directory.join(LOG)).unwrap(), before);
    fs::remove_file(directory.join(LOG)).unwrap();
    let refused = EmbeddedLedger::open(&directory, CACHE).err().unwrap().to_string();
    assert!(refused.contains("the files of its records are gone"), "{refused}");
}

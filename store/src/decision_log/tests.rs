//! Logs in temporary directories, closed and opened again, cut and damaged.

use std::os::unix::fs::FileExt;

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);
const KEEP: Retention = Retention { age: DAY, max_bytes: 1 << 30 };

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

/// A decision about node `n{id % 10}`, one second after the one before.
fn decision(id: u64) -> pb::Decision {
    let name = format!("n{}", id % 10);
    pb::Decision {
        id,
        time: Some(prost_types::Timestamp { seconds: at(id as i64).as_second(), nanos: 0 }),
        leader: "a".to_owned(),
        term: 1,
        subject: Some(pb::DecisionSubject { kind: 1, name: name.clone(), ..Default::default() }),
        node: name,
        zone: "r/z".to_owned(),
        rule: "grace-period-passed".to_owned(),
        reason: "x".repeat(200),
        ..pb::Decision::default()
    }
}

fn batch(ids: impl IntoIterator<Item = u64>) -> Vec<pb::Decision> {
    ids.into_iter().map(decision).collect()
}

fn append(log: &DecisionLog, batch: Vec<pb::Decision>) -> Result<u64, LogError> {
    let now = at(batch.last().map_or(0, |last| last.id as i64));
    log.append(batch, now, || Ok(()))
}

fn ids(decisions: &[pb::Decision]) -> Vec<u64> {
    decisions.iter().map(|decision| decision.id).collect()
}

fn of_node(node: &str) -> DecisionFilter {
    let filter = pb::DecisionFilter { node: node.to_owned(), ..pb::DecisionFilter::default() };
    DecisionFilter::try_from(filter).unwrap()
}

/// All pages.
fn all(log: &DecisionLog, filter: &DecisionFilter, page_size: usize) -> Vec<u64> {
    let (mut found, mut before) = (Vec::new(), None);
    for _ in 0..100_000 {
        let page = log.list(filter, before, page_size).unwrap();
        found.extend(ids(&page.decisions));
        before = page.next_before;
        if before.is_none() {
            return found;
        }
    }
    panic!("the list does not end");
}

fn segments(directory: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        fs::read_dir(directory.join(DIRECTORY)).unwrap().map(|it| it.unwrap().path()).collect();
    all.retain(|path| segment::first_id_of(path).is_some());
    all.sort();
    all
}

#[test]
fn decisions_are_listed_newest_first_in_pages_and_read_in_order_by_a_watch() {
    let directory = tempfile::tempdir().unwrap();
    let log = DecisionLog::open(directory.path(), KEEP).unwrap();
    for first in (1..=2000).step_by(50) {
        append(&log, batch(first..first + 50)).unwrap();
    }
    let anything = DecisionFilter::default();
    for (log, what) in
        [(&log, "as it was written"), (&DecisionLog::open(directory.path(), KEEP).unwrap(), "opened again")]
    {
        assert_eq!(all(log, &anything, 300), (1..=2000).rev().collect::<Vec<u64>>(), "{what}");
        let of_three = all(log, &of_node("n3"), 7);
        assert_eq!(of_three, (1..=2000).rev().filter(|id| id % 10 == 3).collect::<Vec<u64>>(), "{what}");
        let time = |id: i64| Some(prost_types::Timestamp { seconds: at(id).as_second(), nanos: 0 });
        let range = pb::DecisionFilter { since: time(700), until: time(703), ..Default::default() };
        assert_eq!(all(log, &DecisionFilter::try_from(range).unwrap(), 10), [702, 701, 700], "{what}");
        let (read, reached) = log.read_after(1990, &anything, 100).unwrap();
        assert_eq!((ids(&read), reached), ((1991..=2000).collect(), 2000), "{what}");
        let (read, reached) = log.read_after(1985, &of_node("n3"), 100).unwrap();
        assert_eq!((ids(&read), reached), (vec![1993], 2000), "{what}");
        assert_eq!(*log.head().borrow(), 2000, "{what}");
        assert!(matches!(log.read_after(2001, &anything, 1), Err(LogError::Future { last_id: 2000, .. })));
    }
    let mut log = Ok(log);
    for _ in 0..2 {
        let open = log.unwrap();
        assert_eq!(
            append(&open, batch(1990..=2000)).unwrap(),
            2000,
            "a batch that is sent again changes nothing"
        );
        assert_eq!(all(&open, &anything, 1000).len(), 2000);
        log = DecisionLog::open(directory.path(), KEEP);
    }
}

#[test]
fn s254_a_frame_that_a_crash_cut_short_is_cut_off_and_the_log_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    append(&DecisionLog::open(directory.path(), KEEP).unwrap(), batch(1..=3)).unwrap();
    let path = segments(directory.path()).remove(0);
    let whole = fs::metadata(&path).unwrap().len();
    append(&DecisionLog::open(directory.path(), KEEP).unwrap(), batch(4..=5)).unwrap();
    let longer = fs::metadata(&path).unwrap().len();
    for length in [longer - 1, whole + segment::HEADER as u64, whole + 3, whole + 1] {
        File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
        let log = DecisionLog::open(directory.path(), KEEP).unwrap();
        assert_eq!(all(&log, &DecisionFilter::default(), 10), [3, 2, 1], "cut to {length}");
        assert_eq!(fs::metadata(&path).unwrap().len(), whole);
        append(&log, batch(4..=5)).unwrap();
        assert_eq!(
            all(&DecisionLog::open(directory.path(), KEEP).unwrap(), &DecisionFilter::default(), 10),
            [5, 4, 3, 2, 1]
        );
    }
}

#[test]
fn s255_damage_in_the_middle_is_named_and_stops_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let log = DecisionLog::open(directory.path(), KEEP).unwrap();
    let mut offsets = Vec::new();
    let path = |directory: &Path| segments(directory).remove(0);
    for first in (1..=1000).step_by(10) {
        offsets.push(log.bytes());
        append(&log, batch(first..first + 10)).unwrap();
    }
    drop(log);
    let path = path(directory.path());
    // In the body of the frame of 501 to 510.
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"damage", offsets[50] + 60).unwrap();
    let log = DecisionLog::open(directory.path(), KEEP).unwrap();
    let (anything, mut before, mut found) = (DecisionFilter::default(), None, Vec::new());
    let error = loop {
        match log.list(&anything, before, 100) {
            Ok(page) => {
                found.extend(ids(&page.decisions));
                before = Some(page.next_before.expect("the damage is not passed over"));
            }
            Err(error) => break error.to_string(),
        }
    };
    assert_eq!(found, (511..=1000).rev().collect::<Vec<u64>>());
    assert!(error.contains(&format!("{} is damaged at offset {}", path.display(), offsets[50])), "{error}");
    let older = log.list(&anything, Some(501), 5).unwrap();
    assert_eq!(ids(&older.decisions), [500, 499, 498, 497, 496], "what is older is read");
    assert!(matches!(log.read_after(400, &anything, 1000), Err(LogError::Damaged(_))));
    assert_eq!(ids(&log.read_after(510, &anything, 10).unwrap().0)[0], 511);
    append(&log, batch(1001..=1002)).unwrap();
    assert_eq!(segments(directory.path()).len(), 2, "a damaged segment is not continued");
    let log = DecisionLog::open(directory.path(), KEEP).unwrap();
    assert_eq!(ids(&log.list(&anything, None, 3).unwrap().decisions), [1002, 1001, 1000]);
    // Damage that comes while the store runs is found by who reads it, also in a segment with an index.
    file.write_all_at(b"damage", offsets[99] + 60).unwrap();
    let error = log.list(&anything, Some(1001), 3).unwrap_err().to_string();
    assert!(error.contains(&format!("damaged at offset {}", offsets[99])), "{error}");
}

#[test]
fn s256_a_log_keeps_its_limits_of_size_and_age_by_deleting_whole_segments() {
    let directory = tempfile::tempdir().unwrap();
    let small = Retention { age: DAY, max_bytes: 2 << 20 };
    let log = DecisionLog::open(directory.path(), small).unwrap();
    let mut longest = 0;
    for first in (1..=20_000).step_by(100) {
        append(&log, batch(first..first + 100)).unwrap();
        longest = longest.max(log.bytes());
    }
    let on_disk = |directory: &Path| -> u64 {
        segments(directory).iter().map(|path| fs::metadata(path).unwrap().len()).sum()
    };
    assert!(longest <= (2 << 20) + (2 << 20) / 8, "{longest}");
    assert_eq!(on_disk(directory.path()), log.bytes());
    let kept = all(&log, &DecisionFilter::default(), 1000);
    let (newest, oldest) = (kept[0], kept[kept.len() - 1]);
    assert_eq!(newest, 20_000);
    assert_eq!(kept.len() as u64, newest - oldest + 1, "what is kept has no gap");
    assert!(kept.len() > 4_000, "a log is not emptied because it is full: {}", kept.len());
    let error = log.read_after(1, &DecisionFilter::default(), 1).unwrap_err();
    assert!(matches!(error, LogError::Expired { requested: 1, oldest: first } if first == oldest), "{error}");
    drop(log);
    // An index that is missing or damaged is made again from the segment.
    let indexes: Vec<PathBuf> = segments(directory.path())
        .iter()
        .map(|path| index::path_of(path))
        .filter(|path| path.exists())
        .collect();
    assert!(indexes.len() >= 2, "complete segments have an index");
    fs::remove_file(&indexes[0]).unwrap();
    File::options().write(true).open(&indexes[1]).unwrap().write_all_at(b"x", 30).unwrap();
    let log = DecisionLog::open(directory.path(), small).unwrap();
    assert_eq!(all(&log, &DecisionFilter::default(), 1000), kept);
    let a_day_after = |id: i64| Timestamp::from_second(at(id).as_second() + 24 * 3600).unwrap();
    log.enforce_retention(a_day_after(19_000)).unwrap();
    let younger = all(&log, &DecisionFilter::default(), 1000);
    assert!(*younger.last().unwrap() > oldest && *younger.last().unwrap() <= 19_000, "{:?}", younger.last());
    log.enforce_retention(a_day_after(30_000)).unwrap();
    assert_eq!(all(&log, &DecisionFilter::default(), 1000), [] as [u64; 0]);
    drop(log);
    let log = DecisionLog::open(directory.path(), small).unwrap();
    assert_eq!(append(&log, batch([20_001])).unwrap(), 20_001, "the numbers go on");
    let refused = append(&log, batch([20_005])).unwrap_err().to_string();
    assert!(refused.contains("one is missing"), "{refused}");
}

#[test]
fn what_is_not_permitted_is_not_appended() {
    let directory = tempfile::tempdir().unwrap();
    let log = DecisionLog::open(directory.path(), KEEP).unwrap();
    append(&log, batch(1..=2)).unwrap();
    let refused = log.append(batch([3]), at(3), || Err(LogError::Disk(io::Error::other("deposed"))));
    assert!(refused.unwrap_err().to_string().contains("deposed"));
    assert_eq!(all(&log, &DecisionFilter::default(), 10), [2, 1]);
    let mut other = decision(2);
    other.leader = "b".to_owned();
    assert!(append(&log, vec![other]).unwrap_err().to_string().contains("two controllers"));
}

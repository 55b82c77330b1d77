//! Compares what watchers received with what was written: every write once, in the order of versions, none left out where a
//! watch was resumed, and nothing that nobody wrote.

use std::collections::{BTreeMap, HashMap};

use super::register::Sighting;

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    Added,
    Modified,
    Deleted,
}

/// One event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub version: u64,
    pub name: String,
    pub event_type: EventType,
    /// Of a deletion, the last one.
    pub value: u64,
    /// When it was received.
    pub at: u64,
}

/// What a watcher received, in the order in which it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    Event(Event),
    /// All up to this version was sent.
    Bookmark(u64),
}

/// A write as its caller knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub name: String,
    /// `None` for a deletion.
    pub value: Option<u64>,
    /// `None` without an answer.
    pub version: Option<u64>,
}

/// The events of a watcher.
pub fn events(log: &[Received]) -> impl Iterator<Item = &Event> {
    log.iter().filter_map(|received| match received {
        Received::Event(event) => Some(event),
        Received::Bookmark(_) => None,
    })
}

/// How far a watcher has come.
pub fn position(log: &[Received]) -> u64 {
    log.last().map_or(0, |received| match received {
        Received::Event(event) => event.version,
        Received::Bookmark(version) => *version,
    })
}

/// Checks the log of one watcher, who has received all up to the newest of these writes.
///
/// # Errors
/// What is wrong with it.
pub fn check(log: &[Received], writes: &[Write]) -> Result<(), String> {
    check_order(log)?;
    check_types(log)?;
    check_completeness(log, writes)?;
    check_origin(log, writes)
}

fn check_order(log: &[Received]) -> Result<(), String> {
    let mut last = 0;
    for received in log {
        match received {
            Received::Event(event) if event.version <= last => {
                return Err(format!("{event:?} came after version {last}"));
            }
            Received::Bookmark(version) if *version < last => {
                return Err(format!("a bookmark of version {version} came after version {last}"));
            }
            Received::Event(Event { version, .. }) | Received::Bookmark(version) => last = *version,
        }
    }
    Ok(())
}

/// A record is added once, until it is deleted.
fn check_types(log: &[Received]) -> Result<(), String> {
    let mut present: HashMap<&str, &Event> = HashMap::new();
    for event in events(log) {
        let before = present.get(&*event.name).copied();
        match (event.event_type, before) {
            (EventType::Added, Some(before)) => {
                return Err(format!("{event:?}, but it existed: {before:?}"));
            }
            (EventType::Modified | EventType::Deleted, None) => {
                return Err(format!("{event:?}, but it did not exist"));
            }
            (EventType::Deleted, Some(before)) if before.value != event.value => {
                return Err(format!("{event:?} is not the last content: {before:?}"));
            }
            (EventType::Deleted, Some(_)) => drop(present.remove(&*event.name)),
            (EventType::Added | EventType::Modified, _) => drop(present.insert(&event.name, event)),
        }
    }
    Ok(())
}

/// Every acknowledged write is there.
fn check_completeness(log: &[Received], writes: &[Write]) -> Result<(), String> {
    let received: BTreeMap<u64, &Event> = events(log).map(|event| (event.version, event)).collect();
    for write in writes {
        let Some(version) = write.version else { continue };
        let Some(event) = received.get(&version) else {
            let before = received.range(..version).next_back().map(|(_, event)| event);
            let after = received.range(version..).next().map(|(_, event)| event);
            return Err(format!("a gap: {write:?} was not received between {before:?} and {after:?}"));
        };
        let is_same = event.name == write.name
            && match write.value {
                Some(value) => event.event_type != EventType::Deleted && event.value == value,
                None => event.event_type == EventType::Deleted,
            };
        if !is_same {
            return Err(format!("{write:?} was received as {event:?}"));
        }
    }
    Ok(())
}

/// Every event is a write that was acknowledged at its version, or one without an answer.
fn check_origin(log: &[Received], writes: &[Write]) -> Result<(), String> {
    let acknowledged: HashMap<u64, &Write> =
        writes.iter().filter_map(|write| Some((write.version?, write))).collect();
    let mut open: HashMap<(&str, Option<u64>), usize> = HashMap::new();
    for write in writes.iter().filter(|write| write.version.is_none()) {
        *open.entry((&write.name, write.value)).or_default() += 1;
    }
    for event in events(log).filter(|event| !acknowledged.contains_key(&event.version)) {
        let value = (event.event_type != EventType::Deleted).then_some(event.value);
        match open.get_mut(&(&*event.name, value)) {
            Some(left @ 1..) => *left -= 1,
            _ => return Err(format!("nobody wrote this, or it was received twice: {event:?}")),
        }
    }
    Ok(())
}

/// Checks that two watchers received the same, as far as both have come.
///
/// # Errors
/// Where they differ.
pub fn check_same(one: &[Received], other: &[Received]) -> Result<(), String> {
    let both = position(one).min(position(other));
    let upto = |log| events(log).filter(move |event: &&Event| event.version <= both);
    let (mut left, mut right) = (upto(one), upto(other));
    loop {
        match (left.next(), right.next()) {
            (None, None) => return Ok(()),
            (one, other) => {
                let content =
                    |event: &Event| (event.version, event.name.clone(), event.event_type, event.value);
                if one.map(content) != other.map(content) {
                    return Err(format!("one watcher received {one:?} where another received {other:?}"));
                }
            }
        }
    }
}

/// The records as of a version: what a list at that version must show, with version and value by name.
pub fn records_at(log: &[Received], version: u64) -> BTreeMap<String, (u64, u64)> {
    let mut records = BTreeMap::new();
    for event in events(log).take_while(|event| event.version <= version) {
        match event.event_type {
            EventType::Deleted => drop(records.remove(&event.name)),
            _ => drop(records.insert(event.name.clone(), (event.version, event.value))),
        }
    }
    records
}

/// When each value was first received by one of these watchers.
pub fn sightings<'a>(logs: impl IntoIterator<Item = &'a [Received]>) -> HashMap<u64, Sighting> {
    let mut sightings: HashMap<u64, Sighting> = HashMap::new();
    let seen = logs.into_iter().flat_map(events).filter(|event| event.event_type != EventType::Deleted);
    for event in seen {
        let sighting = Sighting { version: event.version, at: event.at };
        let known = sightings.entry(event.value).or_insert(sighting);
        known.at = known.at.min(event.at);
    }
    sightings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(version: u64, name: &str, event_type: EventType, value: u64) -> Received {
        Received::Event(Event { version, name: name.to_owned(), event_type, value, at: 10 * version })
    }

    fn write(name: &str, value: Option<u64>, version: Option<u64>) -> Write {
        Write { name: name.to_owned(), value, version }
    }

    /// Two records; the second update and the deletion had no answer, and were done.
    fn sound() -> (Vec<Received>, Vec<Write>) {
        let log = vec![
            event(3, "a", EventType::Added, 1),
            event(4, "b", EventType::Added, 2),
            Received::Bookmark(6),
            event(7, "a", EventType::Modified, 3),
            event(8, "b", EventType::Deleted, 2),
            event(9, "a", EventType::Modified, 4),
        ];
        let writes = vec![
            write("a", Some(1), Some(3)),
            write("b", Some(2), Some(4)),
            write("a", Some(3), None),
            write("b", None, None),
            write("b", None, None),
            write("a", Some(5), None),
            write("a", Some(4), Some(9)),
        ];
        (log, writes)
    }

    #[test]
    fn a_watch_with_every_write_once_and_in_order_is_accepted() {
        let (log, writes) = sound();
        assert_eq!(check(&log, &writes), Ok(()));
        assert_eq!(check_same(&log, &log[..4]), Ok(()), "one of them is not that far yet");
        assert_eq!(records_at(&log, 7), [("a".into(), (7, 3)), ("b".into(), (4, 2))].into());
        assert_eq!(records_at(&log, 8), [("a".into(), (7, 3))].into());
        assert_eq!(sightings([&*log])[&3], Sighting { version: 7, at: 70 });
    }

    #[test]
    fn gaps_repeats_disorder_and_inventions_are_refused() {
        type Fault = fn(&mut Vec<Received>, &mut Vec<Write>);
        let faults: [(&str, Fault, &str); 10] = [
            ("a gap at the end of a stream", |log, _| drop(log.remove(5)), "a gap"),
            (
                "a gap where a watch was resumed",
                |log, writes| {
                    log.remove(1);
                    log.remove(3);
                    writes.retain(|write| write.name != "b" || write.value.is_some());
                },
                "a gap",
            ),
            ("an event twice", |log, _| log.insert(1, log[0].clone()), "came after version 3"),
            ("an event again after a resume", |log, _| log.insert(3, log[1].clone()), "came after version 6"),
            ("disorder", |log, _| log.swap(0, 1), "came after version 4"),
            (
                "a bookmark ahead of what was sent",
                |log, _| log[2] = Received::Bookmark(7),
                "came after version 7",
            ),
            ("a bookmark that goes back", |log, _| log.push(Received::Bookmark(8)), "came after version 9"),
            (
                "a refused write",
                |log, _| log.push(event(10, "a", EventType::Modified, 77)),
                "nobody wrote this",
            ),
            (
                "another value than the acknowledged one",
                |log, _| log[5] = event(9, "a", EventType::Modified, 5),
                "was received as",
            ),
            (
                "one open write done twice",
                |log, _| log.push(event(10, "a", EventType::Modified, 3)),
                "received twice",
            ),
        ];
        for (name, fault, expected) in faults {
            let (mut log, mut writes) = sound();
            fault(&mut log, &mut writes);
            let refused = check(&log, &writes).expect_err(name);
            assert!(refused.contains(expected), "{name}: {refused}");
        }
    }

    #[test]
    fn types_follow_from_what_existed() {
        for (log, expected) in [
            (vec![event(1, "a", EventType::Modified, 1)], "did not exist"),
            (vec![event(1, "a", EventType::Deleted, 1)], "did not exist"),
            (vec![event(1, "a", EventType::Added, 1), event(2, "a", EventType::Added, 2)], "but it existed"),
            (
                vec![event(1, "a", EventType::Added, 1), event(2, "a", EventType::Deleted, 9)],
                "is not the last content",
            ),
        ] {
            let refused = check_types(&log).expect_err(expected);
            assert!(refused.contains(expected), "{refused}");
        }
    }

    #[test]
    fn watchers_that_received_different_things_are_found() {
        let (log, _) = sound();
        let mut other = log.clone();
        other.remove(3);
        assert!(check_same(&log, &other).unwrap_err().contains("version: 7"));
        other = log.clone();
        other[3] = event(7, "a", EventType::Modified, 9);
        assert!(check_same(&log, &other).is_err());
    }
}

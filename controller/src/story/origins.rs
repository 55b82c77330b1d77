//! Which write made each record what it is, where that write is recorded.

use std::collections::HashMap;
use std::hash::Hash;

use muster_proto::name::Name;
use muster_rpc::trace::Traceparent;
use muster_store_client::Key;

/// Records of a kind whose origin is kept: with all traces recorded, that of as many as a large fleet has.
const KEPT: usize = 65_536;

/// Only of writes that are recorded, and only while the record is as they left it.
#[derive(Debug, Default)]
pub(super) struct Origins {
    nodes: HashMap<Name, Traceparent>,
    pods: HashMap<Key, Traceparent>,
}

impl Origins {
    /// A node changed by that write, or is gone.
    pub(super) fn see_node(&mut self, name: &Name, traceparent: Option<&str>) {
        see(&mut self.nodes, || name.clone(), traceparent);
    }

    pub(super) fn see_pod(&mut self, key: impl FnOnce() -> Key, traceparent: Option<&str>) {
        see(&mut self.pods, key, traceparent);
    }

    pub(super) fn of_node(&self, name: &Name) -> Option<Traceparent> {
        self.nodes.get(name).copied()
    }

    pub(super) fn of_pod(&self, key: &Key) -> Option<Traceparent> {
        self.pods.get(key).copied()
    }
}

fn see<K: Eq + Hash>(
    origins: &mut HashMap<K, Traceparent>,
    key: impl FnOnce() -> K,
    traceparent: Option<&str>,
) {
    match traceparent.and_then(Traceparent::parse).filter(|write| write.is_sampled()) {
        Some(write) => {
            let key = key();
            if origins.len() < KEPT || origins.contains_key(&key) {
                origins.insert(key, write);
            }
        }
        None if origins.is_empty() => {}
        None => drop(origins.remove(&key())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(number: u64, sampled: bool) -> String {
        format!("00-{number:032x}-{number:016x}-{:02x}", u8::from(sampled))
    }

    #[test]
    fn a_record_comes_from_its_last_write_if_that_is_recorded() {
        let mut origins = Origins::default();
        let name: Name = "a".parse().unwrap();
        let found = |origins: &Origins| origins.of_node(&name).map(|place| place.to_string());
        for (traceparent, expected) in [
            (Some(write(1, true)), Some(write(1, true))),
            (Some(write(2, true)), Some(write(2, true))),
            (Some(write(3, false)), None),
            (Some(write(4, true)), Some(write(4, true))),
            (None, None),
        ] {
            origins.see_node(&name, traceparent.as_deref());
            assert_eq!(found(&origins), expected, "after {traceparent:?}");
        }
    }

    #[test]
    fn no_more_origins_are_kept_than_a_large_fleet_has() {
        let mut origins = Origins::default();
        let name = |number: usize| -> Name { format!("n{number}").parse().unwrap() };
        for number in 0..KEPT + 10 {
            origins.see_node(&name(number), Some(&write(7, true)));
        }
        assert_eq!((origins.nodes.len(), origins.of_node(&name(KEPT + 1))), (KEPT, None));
        origins.see_node(&name(0), Some(&write(8, true)));
        assert_eq!(
            origins.of_node(&name(0)).unwrap().to_string(),
            write(8, true),
            "what is kept is kept fresh"
        );
    }
}

use super::*;
use crate::simulation::fleet_spec::FleetSpec;
use muster_proto::condition::{ConditionStatus, types};
use muster_proto::key::Key;
use muster_proto::lease::LeaseSpec;
use muster_proto::meta::Metadata;
use muster_proto::watch_event::{WatchFailure, WatchFailureKind};
use muster_proto::wellknown::{NODE_LEASE_NAMESPACE, label};

const SPEC: FleetSpec = FleetSpec { nodes: 100_000, zones: 3 };
const VALID: i32 = 40;

fn at(seconds: u64) -> Mono {
    Mono::since_origin(Duration::from_secs(1_000 + seconds))
}

fn node(index: usize) -> Node {
    SPEC.node(index, Timestamp::UNIX_EPOCH)
}

fn unknown(index: usize, trace: &str) -> Node {
    let mut node = node(index);
    let ready = node.status.conditions.iter_mut().find(|found| found.kind == types::READY);
    ready.unwrap().status = ConditionStatus::Unknown;
    node.meta.traceparent = Some(format!("00-{trace}-b7ad6b7169203331-01"));
    node
}

fn applied(record: Node) -> WatchEvent<Node> {
    WatchEvent::Applied { record }
}

fn gone<R>(key: Key) -> WatchEvent<R> {
    WatchEvent::Gone { key, uid: None, revision: 9, last: None, traceparent: None }
}

fn lost<R>() -> WatchEvent<R> {
    let message = "the store is away".to_owned();
    WatchEvent::Lost(WatchFailure { kind: WatchFailureKind::Unreachable, retry_after: None, message })
}

fn lease_key(index: usize) -> Key {
    Key::namespaced(NODE_LEASE_NAMESPACE.parse().unwrap(), FleetSpec::name(index))
}

/// A renewal at that second of the store's clock.
fn renewal(index: usize, second: i64) -> WatchEvent<Lease> {
    let namespace = NODE_LEASE_NAMESPACE.parse().unwrap();
    let spec = LeaseSpec {
        lease_duration_seconds: Some(VALID),
        renew_time: Some(Timestamp::from_second(1_000_000 + second).unwrap()),
        ..LeaseSpec::default()
    };
    WatchEvent::Applied {
        record: Lease { meta: Metadata::new(Some(namespace), FleetSpec::name(index)), spec },
    }
}

/// A model with that many nodes, whose pages know them.
fn with_nodes(count: usize) -> FleetModel {
    let mut model = FleetModel::default();
    (0..count).for_each(|index| model.observe_node(applied(node(index))));
    model.observe_node(WatchEvent::Synced { revision: 1 });
    model.observe_lease(WatchEvent::Synced { revision: 1 }, at(0));
    model.take_changes(at(0));
    model
}

fn names(nodes: &[DrawnNode]) -> Vec<&str> {
    nodes.iter().map(|node| &*node.name).collect()
}

fn states(model: &mut FleetModel, now: Mono) -> Vec<(TileId, TileState)> {
    model.advance(now);
    model.take_changes(now).states
}

#[test]
fn nodes_are_drawn_by_zone_and_in_the_natural_order_of_their_names() {
    let mut model = FleetModel::default();
    for index in [9, 0, 3, 1, 6] {
        model.observe_node(applied(node(index)));
    }
    assert!(!model.is_synced());
    model.observe_node(WatchEvent::Synced { revision: 1 });
    assert!(model.is_synced());
    let changes = model.take_changes(at(0));
    assert_eq!(names(&changes.added), ["sim-1", "sim-4", "sim-7", "sim-10", "sim-2"]);
    assert_eq!(&*changes.added[4].zone, "simulated/zone-2");
    assert_eq!(
        model.drawn(at(0)).collect::<Vec<_>>(),
        changes.added,
        "a page that comes later draws the same"
    );
    assert!(model.take_changes(at(0)).is_empty(), "once");
}

#[test]
fn a_change_is_sent_once_and_only_if_it_is_drawn() {
    let mut model = with_nodes(9);
    model.observe_node(applied(node(4)));
    assert!(model.take_changes(at(1)).is_empty(), "a new status that looks the same");
    model.observe_node(applied(unknown(4, "0af7651916cd43dd8448eb211c80319c")));
    model.observe_node(applied(unknown(5, "0af7651916cd43dd8448eb211c80319c")));
    model.observe_node(applied(node(5)));
    let changes = model.take_changes(at(1));
    assert_eq!(changes.states, [(4, TileState::Unknown)], "one that came back in between is not sent");
    assert!(model.take_changes(at(1)).is_empty());
}

#[test]
fn the_trace_is_that_of_the_write_that_changed_the_state() {
    let (first, second) = ("0af7651916cd43dd8448eb211c80319c", "11111111111111111111111111111111");
    let mut model = with_nodes(1);
    let trace = |model: &FleetModel| model.trace("sim-1").map(|id| id.to_string());
    assert_eq!(trace(&model), None);
    model.observe_node(applied(unknown(0, first)));
    assert_eq!(trace(&model).as_deref(), Some(first));
    model.observe_node(applied(unknown(0, second)));
    assert_eq!(trace(&model).as_deref(), Some(first), "a later write that changed nothing of it");
    model.observe_node(applied(node(0)));
    assert_eq!(trace(&model), None);
    assert_eq!(model.trace("sim-2"), None);
}

#[test]
fn a_node_is_late_after_half_of_its_lease_and_no_longer_when_it_renews() {
    let mut model = with_nodes(2);
    for index in 0..2 {
        model.observe_lease(renewal(index, 0), at(0));
    }
    assert_eq!(model.take_changes(at(0)).renewed, [0, 1]);
    model.observe_lease(renewal(1, 10), at(10));
    assert_eq!(states(&mut model, at(19)), []);
    model.advance(at(20));
    let changes = model.take_changes(at(20));
    assert_eq!(changes.states, [(0, TileState::Late)]);
    assert_eq!(changes.silent, [(0, Duration::from_secs(20))]);
    assert_eq!(states(&mut model, at(30)), [(1, TileState::Late)], "the entry has moved on with the renewal");
    model.observe_lease(renewal(0, 31), at(31));
    assert_eq!(states(&mut model, at(31)), [(0, TileState::Ready)]);
    assert_eq!(states(&mut model, at(51)), [(0, TileState::Late)]);
    assert_eq!(model.drawn(at(52)).next().unwrap().silence, Some(Duration::from_secs(21)));
}

#[test]
fn the_age_of_listed_renewals_is_counted_from_the_newest_one() {
    let mut model = FleetModel::default();
    (0..3).for_each(|index| model.observe_node(applied(node(index))));
    model.observe_node(WatchEvent::Synced { revision: 1 });
    for (index, second) in [(0, 100), (1, 75), (2, 92)] {
        model.observe_lease(renewal(index, second), at(0));
    }
    assert_eq!(model.take_changes(at(0)).added.len(), 3);
    model.observe_lease(WatchEvent::Synced { revision: 1 }, at(5));
    assert_eq!(states(&mut model, at(5)), [(1, TileState::Late)]);
    let silences: Vec<_> = model.drawn(at(5)).map(|node| node.silence.unwrap().as_secs()).collect();
    assert_eq!(silences, [0, 25, 8]);
}

#[test]
fn nobody_is_late_while_the_leases_are_not_heard() {
    let mut model = with_nodes(2);
    (0..2).for_each(|index| model.observe_lease(renewal(index, 0), at(0)));
    model.observe_lease(lost(), at(10));
    assert_eq!(states(&mut model, at(500)), []);
    model.observe_lease(renewal(0, 500), at(501));
    model.observe_lease(WatchEvent::Synced { revision: 2 }, at(501));
    assert_eq!(
        states(&mut model, at(501)),
        [(1, TileState::Late)],
        "the renewals that were missed came first"
    );
}

#[test]
fn a_node_that_moves_to_another_zone_is_removed_and_added() {
    let mut model = with_nodes(2);
    let mut moved = node(0);
    moved.meta.labels.insert(label::ZONE.to_owned(), "zone-9".to_owned());
    model.observe_node(applied(moved));
    let changes = model.take_changes(at(1));
    assert_eq!((changes.removed.as_slice(), names(&changes.added)), ([0].as_slice(), vec!["sim-1"]));
    assert_eq!(&*changes.added[0].zone, "simulated/zone-9");
    assert_eq!(model.drawn(at(0)).count(), 2);
}

#[test]
fn a_number_is_used_again_only_after_the_pages_know_that_its_node_is_gone() {
    let mut model = with_nodes(3);
    model.observe_lease(renewal(1, 0), at(0));
    model.observe_node(gone(Key::node(FleetSpec::name(1))));
    model.observe_node(applied(node(7)));
    let changes = model.take_changes(at(1));
    assert_eq!((changes.removed.as_slice(), changes.added[0].id), ([1].as_slice(), 3));
    model.observe_node(applied(node(8)));
    assert_eq!(model.take_changes(at(1)).added[0].id, 4, "its lease still exists");
    model.observe_lease(gone(lease_key(1)), at(2));
    assert!(model.take_changes(at(2)).is_empty());
    model.observe_node(applied(node(20)));
    assert_eq!(model.take_changes(at(3)).added[0].id, 1);
    assert_eq!(model.drawn(at(0)).count(), 5);
    assert_eq!(states(&mut model, at(300)), [], "the deadline of the node before is gone");
}

#[test]
fn a_lease_without_a_node_is_not_drawn() {
    let mut model = with_nodes(1);
    model.observe_lease(renewal(5, 0), at(0));
    assert!(model.take_changes(at(1)).is_empty());
    assert_eq!(states(&mut model, at(100)), []);
    model.observe_node(applied(node(5)));
    let changes = model.take_changes(at(101));
    assert_eq!((names(&changes.added), changes.added[0].state), (vec!["sim-6"], TileState::Late));
}

#[test]
fn ten_thousand_nodes_that_fall_at_once_are_one_change_each() {
    let mut model = with_nodes(10_000);
    let trace = "0af7651916cd43dd8448eb211c80319c";
    (0..10_000).for_each(|index| model.observe_node(applied(unknown(index, trace))));
    let changes = model.take_changes(at(1));
    assert_eq!(changes.states.len(), 10_000);
    assert!(model.take_changes(at(1)).is_empty());
}

use super::super::fleet_view::{ControllerState, StoreState};
use super::*;
use crate::samples::{self, now};
use muster_proto::condition::ConditionStatus;
use muster_proto::node::Node;
use muster_proto::pb;

fn node(name: &str, zone: &str, ready: ConditionStatus, cordoned: bool) -> Node {
    let mut node = samples::node();
    node.meta.name = name.parse().unwrap();
    node.meta.labels.insert("topology.kubernetes.io/zone".to_owned(), zone.to_owned());
    node.spec.unschedulable = cordoned;
    node.spec.drain = None;
    for condition in &mut node.status.conditions {
        condition.status = ready;
    }
    node
}

fn nodes() -> Vec<Node> {
    use ConditionStatus::{False, True, Unknown};
    let mut nodes: Vec<Node> = (0..60).map(|i| node(&format!("a-{i:02}"), "eu-1", True, false)).collect();
    nodes.push(node("b-1", "eu-2", True, true));
    nodes.push(node("b-2", "eu-2", True, false));
    nodes.push(node("b-3", "eu-2", False, false));
    nodes.push(node("b-4", "eu-2", Unknown, false));
    nodes.push(samples::new_node());
    nodes
}

fn fleet() -> ControllerState {
    let zone = |zone: &str, state: pb::ZoneState, rate| pb::FleetZone {
        region: "eu".to_owned(),
        zone: zone.to_owned(),
        state: state.into(),
        rate,
        queue_length: 2,
        ..Default::default()
    };
    ControllerState::Reachable(Box::new(pb::Fleet {
        state: pb::FleetState::Normal.into(),
        reason: "each zone by itself".to_owned(),
        zones: vec![
            zone("eu-1", pb::ZoneState::Normal, 0.1),
            zone("eu-2", pb::ZoneState::PartialDisruption, 0.0),
        ],
        ..Default::default()
    }))
}

#[test]
fn the_view_printed_as_text() {
    let nodes = nodes();
    let nodes = nodes[58..].iter();
    insta::assert_snapshot!(text(&FleetView::new(nodes, StoreState::Connected, &fleet(), now())));
}

#[test]
fn the_view_on_a_small_screen() {
    let nodes = nodes();
    let view = FleetView::new(nodes.iter(), StoreState::Disconnected, &ControllerState::Unreachable, now());
    let mut terminal = Terminal::new(TestBackend::new(100, 14)).unwrap();
    terminal.draw(|frame| draw(&view, 61, frame)).unwrap();
    insta::assert_snapshot!(lines(terminal.backend().buffer()).join("\n"));
}

#[test]
fn an_empty_fleet_and_a_tiny_screen_do_not_panic() {
    let view = FleetView::new([].into_iter(), StoreState::Connected, &ControllerState::Unreachable, now());
    assert!(text(&view).starts_with("0 nodes"), "{}", text(&view));
    let nodes = nodes();
    let view = FleetView::new(nodes.iter(), StoreState::Connected, &fleet(), now());
    for (width, height) in [(1, 1), (3, 2), (20, 5)] {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(&view, view.clamp_scroll(usize::MAX), frame)).unwrap();
    }
}

use super::super::fleet_view::{ControllerState, Heard, HeardByNode, StoreState};
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

/// The nodes a-00 and b-2 were last heard half a minute ago, all others just now.
fn view(nodes: &[Node], store: StoreState, controller: &ControllerState, filter: &str) -> FleetView {
    let lease = |node: &Node| {
        let silence = if ["a-00", "b-2"].contains(&node.meta.name.as_str()) { 30 } else { 3 };
        let mut lease = samples::lease();
        lease.spec.renew_time = Some(now() - jiff::SignedDuration::from_secs(silence));
        lease.spec.lease_duration_seconds = Some(40);
        Heard::of(&lease).unwrap()
    };
    let heard: HeardByNode<'_> = nodes.iter().map(|node| (node.meta.name.as_str(), lease(node))).collect();
    FleetView::new(nodes.iter(), &heard, store, controller, filter, now())
}

fn drawn(view: &FleetView, screen: &Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(view, screen, frame)).unwrap();
    lines(terminal.backend().buffer()).join("\n")
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
    insta::assert_snapshot!(text(&view(&nodes()[58..], StoreState::Connected, &fleet(), "")));
}

#[test]
fn the_view_on_a_small_screen() {
    let view = view(&nodes(), StoreState::Disconnected, &ControllerState::Unreachable, "");
    let screen = Screen { selected: 10, ..Screen::default() };
    insta::assert_snapshot!(drawn(&view, &screen, 80, 20));
}

#[test]
fn a_filter_shows_matching_nodes_only() {
    for (filter, expected) in [("b-", 4), ("EU-2", 4), ("notready", 1), ("nix", 0), ("", 65)] {
        let view = view(&nodes(), StoreState::Connected, &fleet(), filter);
        assert_eq!(view.nodes.len(), expected, "{filter}");
        assert!(view.headline.starts_with("65 nodes"), "{}", view.headline);
        let screen = Screen { filter: filter.to_owned(), ..Screen::default() };
        let shown = drawn(&view, &screen, 80, 20);
        assert!(filter.is_empty() || shown.contains(&format!("with `{filter}`")), "{shown}");
    }
}

#[test]
fn a_bar_is_in_proportion_and_shows_every_health() {
    let zone = view(&nodes(), StoreState::Connected, &fleet(), "").zones;
    let large = zone.iter().find(|zone| zone.name == "eu/eu-1").unwrap();
    assert_eq!(large.bar(100), [0, 0, 1, 0, 59], "all nodes fit");
    for width in [2, 7, 20, 59] {
        let bar = large.bar(width);
        assert_eq!(bar.iter().sum::<usize>(), width, "{bar:?}");
        assert_eq!(bar[Health::Late as usize], 1, "one of sixty is seen: {bar:?}");
    }
}

#[test]
fn an_explanation_covers_the_screen() {
    let lines: Vec<String> = (0..9).map(|i| format!("line {i}")).collect();
    let screen = Screen { mode: Mode::Page { lines, scroll: 7 }, ..Screen::default() };
    let view = view(&nodes(), StoreState::Connected, &fleet(), "");
    let shown = drawn(&view, &screen, 60, 4);
    assert_eq!(shown, "line 7\nline 8\n\nEsc goes back, arrow and page keys scroll");
}

#[test]
fn an_empty_fleet_and_a_tiny_screen_do_not_panic() {
    let empty = view(&[], StoreState::Connected, &ControllerState::Unreachable, "");
    assert!(text(&empty).starts_with("0 nodes"), "{}", text(&empty));
    let view = view(&nodes(), StoreState::Connected, &fleet(), "");
    for (width, height) in [(1, 1), (3, 2), (20, 5)] {
        drawn(&view, &Screen { selected: 64, ..Screen::default() }, width, height);
    }
}

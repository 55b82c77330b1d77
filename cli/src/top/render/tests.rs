use super::super::fleet_view::{Controller, Store};
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
    nodes.push(samples::silent_node());
    nodes
}

fn fleet() -> Controller {
    let zone = |zone: &str, state: &str, rate| pb::FleetZone {
        region: "eu".to_owned(),
        zone: zone.to_owned(),
        state: state.to_owned(),
        rate,
        queue_length: 2,
        ..Default::default()
    };
    Controller::Heard(Box::new(pb::Fleet {
        state: "Judging".to_owned(),
        reason: "each zone by itself".to_owned(),
        zones: vec![zone("eu-1", "Normal", 0.1), zone("eu-2", "PartialDisruption", 0.0)],
        ..Default::default()
    }))
}

#[test]
fn the_picture_as_it_is_printed() {
    let nodes = nodes();
    let nodes = nodes[58..].iter();
    insta::assert_snapshot!(text(&Model::of(nodes, Store::Heard, &fleet(), now())));
}

#[test]
fn the_picture_on_a_small_screen() {
    let nodes = nodes();
    let model = Model::of(nodes.iter(), Store::Silent, &Controller::Silent, now());
    let mut terminal = Terminal::new(TestBackend::new(100, 14)).unwrap();
    terminal.draw(|frame| draw(&model, 61, frame)).unwrap();
    insta::assert_snapshot!(lines(terminal.backend().buffer()).join("\n"));
}

#[test]
fn an_empty_fleet_and_a_tiny_screen_do_no_harm() {
    let model = Model::of([].into_iter(), Store::Heard, &Controller::Silent, now());
    assert!(text(&model).starts_with("0 nodes"), "{}", text(&model));
    let nodes = nodes();
    let model = Model::of(nodes.iter(), Store::Heard, &fleet(), now());
    for (width, height) in [(1, 1), (3, 2), (20, 5)] {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(&model, model.scrolled(usize::MAX), frame)).unwrap();
    }
}

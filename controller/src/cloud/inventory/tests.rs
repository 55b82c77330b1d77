use std::fs;
use std::path::Path;
use std::time::Duration;

use muster_proto::name::Name;
use muster_rpc::server::ServerConfig;
use muster_rpc::shutdown::Shutdown;
use muster_rpc::telemetry::TelemetryFlags;
use muster_rpc::tls::TlsFlags;
use tempfile::TempDir;

use super::*;
use crate::cloud::client::{CloudClient, CloudEndpoint};
use muster_controller_core::cloud_nodes::{CloudNodes, Settings};
use muster_controller_core::fixtures::{at, node};
use muster_controller_core::plan::{
    Action, Answer, CloudMachine, CloudQuestion, Failure, Outcome, Plan, PlannedAction, Subject,
};
use muster_controller_core::world::World;

const LIST: &str = r#"
    [[machine]]
    name = "a"
    provider-id = "rack://1"
    instance-type = "r640"
    zone = "rack-a"
    region = "hall-1"
    addresses = [{ type = "InternalIP", address = "10.0.0.1" }, { type = "ExternalDNS", address = "a.example" }]

    [[machine]]
    name = "b"
    state = "off"
"#;

#[test]
fn machines_are_found_by_provider_id_or_by_name() {
    let inventory = Inventory::parse(LIST).unwrap();
    assert_eq!(inventory.count(), 2);
    for (name, provider_id, found) in [
        ("a", "", Some("a")),
        ("a", "rack://1", Some("a")),
        ("renamed", "rack://1", Some("a")),
        ("a", "rack://2", None),
        ("b", "", Some("b")),
        ("b", "rack://2", Some("b")),
        ("c", "", None),
        ("c", "rack://2", None),
    ] {
        let machine = inventory.find(name, provider_id).map(|machine| machine.name.as_str());
        assert_eq!(machine, found, "{name} {provider_id}");
    }
}

#[test]
fn an_invalid_inventory_is_refused_with_the_machine_and_field() {
    for (text, expected) in [
        ("", "it names no machine"),
        ("[[machine]]\nname = ''", "machine number 1: name must not be empty"),
        ("[[machine]]\nname = 'a'\n[[machine]]\nname = 'a'", "machine a is listed twice"),
        (
            "[[machine]]\nname = 'a'\nprovider-id = 'x'\n[[machine]]\nname = 'b'\nprovider-id = 'x'",
            "machines a and b have the same provider-id x",
        ),
        (
            "[[machine]]\nname = 'a'\nzone = 'rack a'",
            "machine a: zone must be empty, or of letters, digits, '-', '_' and '.', \
             starting and ending with a letter or digit",
        ),
        (
            "[[machine]]\nname = 'a'\naddresses = [{ type = 'IP', address = '1' }]",
            "machine a: addresses have type \"IP\": \
             it must be Hostname, InternalIP, ExternalIP, InternalDNS or ExternalDNS",
        ),
        (
            "[[machine]]\nname = 'a'\naddresses = [{ type = 'InternalIP', address = '' }]",
            "machine a: addresses must not be empty",
        ),
    ] {
        assert_eq!(Inventory::parse(text).unwrap_err().to_string(), expected, "{text}");
    }
    for (text, word) in [
        ("[[machine]]\nname = 'a'\nstate = 'on'", "`on`"),
        ("[[machine]]\nname = 'a'\nprovider_id = 'x'", "`provider_id`"),
        ("[[machines]]\nname = 'a'", "`machines`"),
        ("[[machine]]\nzone = 'a'", "`name`"),
        ("[[machine]", "line 1"),
    ] {
        let error = Inventory::parse(text).unwrap_err().to_string();
        assert!(error.contains(word), "{text}: {error}");
    }
}

/// A plug-in that serves a file, and a client of it.
struct Plugin {
    directory: TempDir,
    client: CloudClient,
    shutdown: Shutdown,
    running: Running,
}

impl Plugin {
    async fn serving(text: &str) -> Plugin {
        let directory = TempDir::new().unwrap();
        let inventory = directory.path().join("inventory.toml");
        fs::write(&inventory, text).unwrap();
        let flags = flags(&inventory);
        let shutdown = Shutdown::new();
        let running = start(&flags, shutdown.clone()).await.unwrap();
        let endpoint =
            CloudEndpoint { url: running.address.to_string(), tls: None, deadline: Duration::from_secs(60) };
        Plugin { directory, client: CloudClient::connect(&endpoint).unwrap(), shutdown, running }
    }

    /// Replaces the inventory file.
    fn replace(&self, text: &str) {
        let [new, list] = ["new.toml", "inventory.toml"].map(|name| self.directory.path().join(name));
        fs::write(&new, text).unwrap();
        fs::rename(&new, &list).unwrap();
    }

    fn remove(&self) {
        fs::remove_file(self.directory.path().join("inventory.toml")).unwrap();
    }

    async fn ask(&self, question: CloudQuestion, name: &str) -> Result<Answer, Failure> {
        self.client.ask(question, &name.parse::<Name>().unwrap(), "").await
    }

    async fn stop(self) {
        self.shutdown.trigger();
        self.running.stopped().await.unwrap();
    }
}

fn flags(inventory: &Path) -> Flags {
    Flags {
        inventory: inventory.to_owned(),
        listen: "127.0.0.1:0".parse().unwrap(),
        tls: TlsFlags::default(),
        server: ServerConfig::default(),
        telemetry: TelemetryFlags::default(),
    }
}

#[tokio::test]
async fn every_call_is_answered_from_the_inventory() {
    let plugin = Plugin::serving(LIST).await;
    for (name, exists) in [("a", true), ("b", true), ("c", false)] {
        assert_eq!(plugin.ask(CloudQuestion::Exists, name).await, Ok(Answer::Cloud(exists)), "{name}");
    }
    for (name, off) in
        [("a", Ok(Answer::Cloud(false))), ("b", Ok(Answer::Cloud(true))), ("c", Err(Failure::Gone))]
    {
        assert_eq!(plugin.ask(CloudQuestion::Shutdown, name).await, off, "{name}");
    }
    let address = |kind, address: &str| NodeAddress { kind, address: address.to_owned() };
    let machine = CloudMachine {
        provider_id: "rack://1".to_owned(),
        instance_type: "r640".to_owned(),
        zone: "rack-a".to_owned(),
        region: "hall-1".to_owned(),
        addresses: vec![
            address(AddressType::InternalIp, "10.0.0.1"),
            address(AddressType::ExternalDns, "a.example"),
        ],
    };
    let known = Ok(Answer::Machine(Box::new(machine)));
    assert_eq!(plugin.ask(CloudQuestion::Metadata, "a").await, known);
    assert_eq!(plugin.ask(CloudQuestion::Metadata, "b").await, Ok(Answer::Machine(Box::default())));
    assert_eq!(plugin.ask(CloudQuestion::Metadata, "c").await, Err(Failure::Gone));
    plugin.stop().await;
}

#[tokio::test]
async fn the_inventory_is_read_again_when_it_changes_and_a_broken_one_says_nothing() {
    let plugin = Plugin::serving(LIST).await;
    let exists = async |name| plugin.ask(CloudQuestion::Exists, name).await;
    assert_eq!(exists("a").await, Ok(Answer::Cloud(true)));
    plugin.replace("[[machine]]\nname = 'c'");
    assert_eq!((exists("a").await, exists("c").await), (Ok(Answer::Cloud(false)), Ok(Answer::Cloud(true))));
    for broken in ["", "[[machine]", "[[machine]]\nname = 'c'\nstate = 'on'"] {
        plugin.replace(broken);
        for name in ["a", "c", "c"] {
            let Err(Failure::Later(reason)) = exists(name).await else { panic!("{broken:?} says something") };
            assert!(reason.contains("inventory.toml is not an inventory"), "{reason}");
        }
    }
    plugin.remove();
    let Err(Failure::Later(reason)) = exists("c").await else { panic!("no file says something") };
    assert!(reason.starts_with("Unavailable: cannot read "), "{reason}");
    plugin.replace(LIST);
    assert_eq!((exists("a").await, exists("c").await), (Ok(Answer::Cloud(true)), Ok(Answer::Cloud(false))));
    plugin.stop().await;
}

#[tokio::test]
async fn a_plugin_without_an_inventory_does_not_start() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("missing.toml");
    let error = start(&flags(&path), Shutdown::new()).await.err().unwrap().to_string();
    assert!(error.starts_with("--inventory: cannot read ") && error.contains("missing.toml"), "{error}");
    fs::write(&path, "").unwrap();
    let error = start(&flags(&path), Shutdown::new()).await.err().unwrap().to_string();
    assert!(error.ends_with("missing.toml is not an inventory: it names no machine"), "{error}");
}

/// What the controller plans at that second, once the plug-in has answered all calls.
async fn planned(cloud: &mut CloudNodes, world: &World, plugin: &Plugin, seconds: u64) -> Vec<PlannedAction> {
    loop {
        let mut plan = Plan::default();
        cloud.decide(world, at(0).mono, at(seconds), &mut plan);
        if plan.actions.iter().all(|planned| matches!(planned.action, Action::DeleteNode { .. })) {
            return plan.actions;
        }
        for PlannedAction { action, subject, controller, .. } in plan.actions {
            let result = match (action, &subject) {
                (Action::AskCloud { question, provider_id }, Subject::Node(name, _)) => {
                    plugin.client.ask(question, name, &provider_id).await
                }
                (Action::ReadLease, _) => Err(Failure::Gone),
                (Action::WriteLease(lease), _) => Ok(Answer::Lease(lease)),
                (action, _) => panic!("{action:?} beside a question"),
            };
            cloud.settle(&Outcome { controller, subject, result }, world, at(seconds));
        }
    }
}

#[tokio::test]
async fn a_machine_removed_from_the_inventory_loses_its_node_and_a_lost_inventory_costs_none() {
    let plugin = Plugin::serving(LIST).await;
    let (mut cloud, mut world) = (CloudNodes::new(Settings::default()), World::new());
    for delta in world.apply_node(node("a").build()) {
        cloud.observe(&delta, &world, at(0));
    }
    for (seconds, list) in [(0, Some(LIST)), (5, None), (10, None), (15, None), (20, None), (25, Some(LIST))]
    {
        match list {
            Some(list) => plugin.replace(list),
            None => drop(fs::remove_file(plugin.directory.path().join("inventory.toml"))),
        }
        assert_eq!(planned(&mut cloud, &world, &plugin, seconds).await, []);
    }
    plugin.replace("[[machine]]\nname = 'b'");
    let mut deletions = Vec::new();
    for seconds in [30, 35, 40] {
        deletions.push(planned(&mut cloud, &world, &plugin, seconds).await.len());
    }
    assert_eq!(deletions, [0, 0, 1]);
    plugin.stop().await;
}

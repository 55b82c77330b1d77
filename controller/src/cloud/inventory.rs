//! The reference cloud plug-in: it answers from an inventory file, a list of machines that an operator maintains.
//!
//! A machine that is not in the file does not exist. A file that cannot be read says nothing about any machine.
//!
//! ```toml
//! [[machine]]
//! name = "node-1"
//! provider-id = "rack://a/1"
//! instance-type = "r640"
//! zone = "rack-a"
//! region = "hall-1"
//! addresses = [{ type = "InternalIP", address = "10.0.0.1" }]
//! state = "running" # or "off"
//! ```

use std::collections::HashMap;

use muster_proto::label::check_label_value;
use muster_proto::node::{AddressType, NodeAddress};
use serde::Deserialize;

mod file;
mod run;
mod service;

pub use file::FileError;
pub use run::{Flags, RunError, Running, main, start};

/// Machines, by node name and by provider id.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    machines: Vec<Machine>,
    by_name: HashMap<String, usize>,
    by_provider_id: HashMap<String, usize>,
}

/// One machine of the inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    pub name: String,
    /// Empty if the machine has none.
    pub provider_id: String,
    pub instance_type: String,
    pub zone: String,
    pub region: String,
    pub addresses: Vec<NodeAddress>,
    pub is_off: bool,
}

/// Why a text is not a valid inventory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InventoryError {
    #[error("{0}")]
    Toml(String),
    // More likely a truncated or wrong file than a fleet without machines.
    #[error("it names no machine")]
    Empty,
    #[error("machine number {number}: name must not be empty")]
    NoName { number: usize },
    #[error("machine {name}: {field} {reason}")]
    Field { name: String, field: &'static str, reason: String },
    #[error("machine {name} is listed twice")]
    NameTwice { name: String },
    #[error("machines {first} and {second} have the same provider-id {provider_id}")]
    ProviderIdTwice { first: String, second: String, provider_id: String },
}

/// The file's format.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Listing {
    #[serde(default)]
    machine: Vec<Listed>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Listed {
    name: String,
    #[serde(default)]
    provider_id: String,
    #[serde(default)]
    instance_type: String,
    #[serde(default)]
    zone: String,
    #[serde(default)]
    region: String,
    #[serde(default)]
    addresses: Vec<ListedAddress>,
    #[serde(default)]
    state: ListedState,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListedAddress {
    r#type: String,
    address: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ListedState {
    #[default]
    Running,
    Off,
}

impl Inventory {
    /// # Errors
    /// When the text is not TOML, or a machine is invalid.
    pub fn parse(text: &str) -> Result<Inventory, InventoryError> {
        let listing: Listing = toml::from_str(text)
            .map_err(|error| InventoryError::Toml(error.to_string().trim().to_owned()))?;
        let mut inventory = Inventory::default();
        for (i, listed) in listing.machine.into_iter().enumerate() {
            inventory.add(Machine::check(listed, i + 1)?)?;
        }
        if inventory.machines.is_empty() { Err(InventoryError::Empty) } else { Ok(inventory) }
    }

    /// How many machines there are.
    pub fn count(&self) -> usize {
        self.machines.len()
    }

    /// The machine with that provider id; by the node's name if the id is empty or unknown to the inventory.
    pub fn find(&self, node_name: &str, provider_id: &str) -> Option<&Machine> {
        let named = || self.by_name.get(node_name).map(|&i| &self.machines[i]);
        match provider_id {
            "" => named(),
            // The inventory may leave out an id that the node's own agent reports.
            id => match self.by_provider_id.get(id) {
                Some(&i) => Some(&self.machines[i]),
                None => named().filter(|machine| machine.provider_id.is_empty()),
            },
        }
    }

    fn add(&mut self, machine: Machine) -> Result<(), InventoryError> {
        let place = self.machines.len();
        if self.by_name.insert(machine.name.clone(), place).is_some() {
            return Err(InventoryError::NameTwice { name: machine.name });
        }
        if !machine.provider_id.is_empty()
            && let Some(first) = self.by_provider_id.insert(machine.provider_id.clone(), place)
        {
            let first = self.machines[first].name.clone();
            let Machine { name: second, provider_id, .. } = machine;
            return Err(InventoryError::ProviderIdTwice { first, second, provider_id });
        }
        self.machines.push(machine);
        Ok(())
    }
}

impl Machine {
    fn check(listed: Listed, number: usize) -> Result<Machine, InventoryError> {
        let Listed { name, provider_id, instance_type, zone, region, addresses, state } = listed;
        if name.is_empty() {
            return Err(InventoryError::NoName { number });
        }
        let wrong = |field, reason: String| InventoryError::Field { name: name.clone(), field, reason };
        for (field, value) in [("instance-type", &instance_type), ("zone", &zone), ("region", &region)] {
            check_label_value(value).map_err(|error| wrong(field, error.to_string()))?;
        }
        let mut checked = Vec::new();
        for ListedAddress { r#type, address } in addresses {
            let kind: AddressType = r#type
                .parse()
                .map_err(|error| wrong("addresses", format!("have type {type:?}: it {error}")))?;
            if address.is_empty() {
                return Err(wrong("addresses", "must not be empty".to_owned()));
            }
            checked.push(NodeAddress { kind, address });
        }
        let is_off = matches!(state, ListedState::Off);
        Ok(Machine { name, provider_id, instance_type, zone, region, addresses: checked, is_off })
    }
}

#[cfg(test)]
mod tests;

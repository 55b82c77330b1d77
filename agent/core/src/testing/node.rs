//! A sample node: its settings, its machine, and the status that they make.

use jiff::Timestamp;
use muster_proto::label::Annotations;
use muster_proto::node::{NodeSpec, NodeStatus};
use muster_proto::quantity::Resources;

use crate::config::{CapacityConfig, NodeConfig};
use crate::machine::{Hardware, Network, System};
use crate::status::capacity::EvictionReserve;
use crate::status::{Computed, EmittedEvents, Observed, Previous, Settings, compute};

const GIB: u64 = 1 << 30;

/// A node named `n1` with default settings.
pub fn settings() -> Settings {
    Settings {
        name: "n1".parse().unwrap(),
        node: NodeConfig { register: true, ..NodeConfig::default() },
        capacity: CapacityConfig {
            max_pods: 110,
            pods_per_core: 0,
            system_reserved: Resources::new(),
            kube_reserved: Resources::new(),
        },
        eviction_reserve: EvictionReserve::default(),
        agent_port: 7600,
        agent_address: None,
        legacy_conditions: false,
        max_images: Some(50),
        version: "0.1.0".to_owned(),
        storage_isolation: true,
    }
}

/// A healthy machine of 4 cores and 16 GiB at 10.0.0.5 and fd00::5.
pub fn observed() -> Observed {
    let local = ["127.0.0.1", "10.0.0.5", "fd00::5"].map(|text| text.parse().unwrap()).to_vec();
    Observed {
        system: System {
            machine_id: "m1".to_owned(),
            boot_id: "boot-1".to_owned(),
            operating_system: "linux".to_owned(),
            architecture: "amd64".to_owned(),
            ..System::default()
        },
        hardware: Some(Hardware { cores: 4, memory_bytes: 16 * GIB, ..Hardware::default() }),
        storage_bytes: Some(100 * GIB),
        network: Some(Network { local, default_route: vec!["10.0.0.5".parse().unwrap()] }),
        runtime_version: "process://0.1.0".to_owned(),
        ..Observed::default()
    }
}

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// The status after `previous`, computed at that second.
pub fn after(previous: &NodeStatus, observed: &Observed, second: i64) -> Computed {
    let (spec, annotations) = (NodeSpec::default(), Annotations::new());
    let previous = Previous { status: previous, spec: &spec, annotations: &annotations };
    compute(previous, &settings(), observed, &mut EmittedEvents::default(), at(second))
}

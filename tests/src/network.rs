//! A network of namespaces whose packets can be dropped between any two of them, in one direction or both. Requires root.

use std::net::Ipv4Addr;
use std::process::Command;

/// Hosts behind one bridge. The test is on the bridge too, as the first address. Everything in it must have ended before it
/// is dropped.
#[derive(Debug)]
pub struct Network {
    /// The namespace of the bridge, and the beginning of the others' names.
    hub: String,
    net: [u8; 3],
    hosts: usize,
}

impl Network {
    /// A network of so many hosts, at most 200.
    pub fn of(hosts: usize) -> Network {
        let is_root = rustix::process::geteuid().is_root();
        assert!(is_root, "this test creates network namespaces and must be run as root");
        let id = std::process::id() % 60_000;
        let network = Network { hub: format!("mh{id}"), net: free_net(id), hosts };
        ip(&["netns", "add", &network.hub]);
        // In a namespace of its own, so that no packet filter of this machine sees what passes.
        ip(&["-n", &network.hub, "link", "add", "hub", "type", "bridge"]);
        ip(&["-n", &network.hub, "link", "set", "hub", "up"]);
        let ours = format!("{}r", network.hub);
        network.plug(&ours, None);
        ip(&["address", "add", &format!("{}/24", network.at(1)), "dev", &ours]);
        ip(&["link", "set", &ours, "up"]);
        for host in 0..hosts {
            let namespace = network.namespace(host);
            ip(&["netns", "add", &namespace]);
            network.plug("port", Some(&namespace));
            let address = format!("{}/24", network.address(host));
            ip(&["-n", &namespace, "address", "add", &address, "dev", "port"]);
            ip(&["-n", &namespace, "link", "set", "port", "up"]);
            ip(&["-n", &namespace, "link", "set", "lo", "up"]);
        }
        network
    }

    /// Connects an interface, in a namespace or in this one, to the bridge.
    fn plug(&self, interface: &str, namespace: Option<&str>) {
        let end = namespace.map_or_else(|| "own".to_owned(), |namespace| format!("to-{namespace}"));
        let peer = ["type", "veth", "peer", "name", &end, "netns", &self.hub];
        match namespace {
            Some(namespace) => ip(&[&["-n", namespace, "link", "add", interface][..], &peer].concat()),
            None => ip(&[&["link", "add", interface][..], &peer].concat()),
        }
        ip(&["-n", &self.hub, "link", "set", &end, "master", "hub"]);
        ip(&["-n", &self.hub, "link", "set", &end, "up"]);
    }

    fn namespace(&self, host: usize) -> String {
        format!("{}n{host}", self.hub)
    }

    fn at(&self, last: u8) -> Ipv4Addr {
        let [a, b, c] = self.net;
        Ipv4Addr::new(a, b, c, last)
    }

    /// The address of a host.
    pub fn address(&self, host: usize) -> Ipv4Addr {
        self.at(10 + u8::try_from(host).expect("there are few hosts"))
    }

    /// The option of `nsenter` for a host.
    pub fn nsenter(&self, host: usize) -> String {
        format!("--net=/run/netns/{}", self.namespace(host))
    }

    /// Drops the packets from one host to another, without a word to either.
    pub fn drop_packets(&self, from: usize, to: usize) {
        let from = self.address(from).to_string();
        self.iptables(to, &["-A", "INPUT", "-s", &from, "-j", "DROP"]);
    }

    /// Drops the packets between two hosts.
    pub fn cut(&self, one: usize, other: usize) {
        self.drop_packets(one, other);
        self.drop_packets(other, one);
    }

    /// Drops no packets any more.
    pub fn heal(&self) {
        for host in 0..self.hosts {
            self.iptables(host, &["-F", "INPUT"]);
        }
    }

    fn iptables(&self, host: usize, args: &[&str]) {
        let namespace = self.namespace(host);
        ip(&[&["netns", "exec", &namespace, "iptables", "-w"][..], args].concat());
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Their interfaces go with them, and with each its other end.
        for host in 0..self.hosts {
            let _ = command().args(["netns", "delete", &self.namespace(host)]).status();
        }
        let _ = command().args(["link", "delete", &format!("{}r", self.hub)]).status();
        let _ = command().args(["netns", "delete", &self.hub]).status();
    }
}

/// A block of addresses that this machine does not use, from the one for benchmarks (RFC 2544).
fn free_net(id: u32) -> [u8; 3] {
    let nets = (0..512).map(|step| (id + 7 * step) % 512);
    let nets = nets.map(|number| [198, 18 + (number >> 8) as u8, (number & 255) as u8]);
    let is_free = |[a, b, c]: &[u8; 3]| {
        let routes = command().args(["route", "show", &format!("{a}.{b}.{c}.0/24")]).output();
        routes.is_ok_and(|routes| routes.status.success() && routes.stdout.is_empty())
    };
    nets.into_iter().find(is_free).expect("some block of addresses is free")
}

fn ip(args: &[&str]) {
    let output = command().args(args).output().expect("iproute2 is installed: .ci/tools docker");
    assert!(output.status.success(), "ip {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn command() -> Command {
    let mut command = Command::new("ip");
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

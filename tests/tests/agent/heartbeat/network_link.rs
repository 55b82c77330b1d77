use std::process::Command;

/// A network namespace, connected to this one by a veth pair. Requires root.
pub(crate) struct NetworkLink {
    pub(crate) namespace: String,
    ours: String,
    pub(crate) net: String,
}

impl NetworkLink {
    pub(crate) fn new() -> NetworkLink {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test creates a network namespace and must be run as root"
        );
        let id = std::process::id() % 60_000;
        let (namespace, ours) = (format!("mt{id}"), format!("mt{id}a"));
        // From the address block for benchmarks (RFC 2544).
        let net = format!("198.{}.{}", 18 + (id >> 8 & 1), id & 255);
        let link = NetworkLink { namespace, ours, net };
        let theirs = format!("mt{id}b");
        ip(&["netns", "add", &link.namespace]);
        let peer = ["type", "veth", "peer", "name", &theirs, "netns", &link.namespace];
        ip(&[&["link", "add", &link.ours][..], &peer].concat());
        ip(&["address", "add", &format!("{}.1/24", link.net), "dev", &link.ours]);
        ip(&["link", "set", &link.ours, "up"]);
        link.ip_in_namespace(&["address", "add", &format!("{}.2/24", link.net), "dev", &theirs]);
        link.ip_in_namespace(&["link", "set", "lo", "up"]);
        link.set_interface("up");
        link
    }

    fn ip_in_namespace(&self, args: &[&str]) {
        ip(&[&["-n", &self.namespace][..], args].concat());
    }

    /// Sets the interface in the namespace `up` or `down`.
    pub(crate) fn set_interface(&self, state: &str) {
        let theirs = self.ours.replace('a', "b");
        self.ip_in_namespace(&["link", "set", &theirs, state]);
    }
}

impl Drop for NetworkLink {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "delete", &self.ours]).status();
        let _ = Command::new("ip").args(["netns", "delete", &self.namespace]).status();
    }
}

fn ip(args: &[&str]) {
    let output = Command::new("ip").args(args).output().expect("iproute2 is installed");
    assert!(output.status.success(), "ip {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

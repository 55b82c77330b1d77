use std::process::Command;

/// A network namespace with a link to this one. It must be run as root.
pub(crate) struct NetworkLink {
    pub(crate) namespace: String,
    ours: String,
    pub(crate) net: String,
}

impl NetworkLink {
    pub(crate) fn new() -> NetworkLink {
        assert!(rustix::process::geteuid().is_root(), "this test lays a link and must be run as root");
        let id = std::process::id() % 60_000;
        let (namespace, ours) = (format!("mt{id}"), format!("mt{id}a"));
        // Of the block for tests of networks.
        let net = format!("198.{}.{}", 18 + (id >> 8 & 1), id & 255);
        let link = NetworkLink { namespace, ours, net };
        let theirs = format!("mt{id}b");
        ip(&["netns", "add", &link.namespace]);
        let peer = ["type", "veth", "peer", "name", &theirs, "netns", &link.namespace];
        ip(&[&["link", "add", &link.ours][..], &peer].concat());
        ip(&["address", "add", &format!("{}.1/24", link.net), "dev", &link.ours]);
        ip(&["link", "set", &link.ours, "up"]);
        link.there(&["address", "add", &format!("{}.2/24", link.net), "dev", &theirs]);
        link.there(&["link", "set", "lo", "up"]);
        link.plug("up");
        link
    }

    fn there(&self, args: &[&str]) {
        ip(&[&["-n", &self.namespace][..], args].concat());
    }

    /// `up` or `down`, at the other end.
    pub(crate) fn plug(&self, state: &str) {
        let theirs = self.ours.replace('a', "b");
        self.there(&["link", "set", &theirs, state]);
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

//! What `muster up` says when it is ready.

use std::fmt;
use std::net::SocketAddr;

use muster_rpc::tls::TlsFlags;

use super::Place;

const NODE: &str = r#"{"node":{"metadata":{"name":"10.240.79.157","labels":{"name":"my-first-k8s-node"}}}}"#;

/// What runs, where, and what to try. Its last line is `ready`, for scripts to
/// wait for.
#[derive(Debug)]
pub(super) struct Greeting<'a> {
    pub(super) grpc: SocketAddr,
    pub(super) http: SocketAddr,
    pub(super) place: &'a Place,
    pub(super) tls: &'a TlsFlags,
}

impl fmt::Display for Greeting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Greeting { grpc, http, place, tls } = self;
        let grpcurl = Grpcurl(tls);
        writeln!(f, "muster up runs the store only; muster-agent puts this machine on its roll.")?;
        writeln!(f)?;
        writeln!(f, "  gRPC     {grpc}")?;
        writeln!(f, "  HTTP     http://{http}/metrics, /healthz and /readyz")?;
        writeln!(f, "  records  {place}")?;
        writeln!(f)?;
        writeln!(f, "Try in another terminal:")?;
        writeln!(f)?;
        writeln!(f, "  {grpcurl} {grpc} list")?;
        writeln!(f, "  {grpcurl} -d '{NODE}' {grpc} muster.v1.NodeService/CreateNode")?;
        writeln!(f, "  {grpcurl} {grpc} muster.v1.NodeService/ListNodes")?;
        writeln!(f)?;
        writeln!(f, "ctrl-C stops it.")?;
        writeln!(f, "ready")
    }
}

/// How grpcurl is called on a server that is protected like this one.
struct Grpcurl<'a>(&'a TlsFlags);

impl fmt::Display for Grpcurl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TlsFlags { tls_cert, tls_key, tls_client_ca, .. } = self.0;
        match (tls_cert, tls_key, tls_client_ca) {
            (Some(cert), Some(key), Some(ca)) => {
                let (cert, key, ca) = (cert.display(), key.display(), ca.display());
                write!(f, "grpcurl -cacert {ca} -cert {cert} -key {key}")
            }
            _ => f.write_str("grpcurl -plaintext"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn the_commands_to_try_fit_how_the_store_is_served() {
        let place = Place::Kept("/somewhere".into());
        let plain = TlsFlags::default();
        let file = |name: &str| Some(PathBuf::from(name));
        let mutual = TlsFlags {
            tls_cert: file("c.pem"),
            tls_key: file("k.pem"),
            tls_client_ca: file("ca.pem"),
            insecure: false,
        };
        for (tls, expected) in [
            (&plain, "  grpcurl -plaintext 127.0.0.1:1 list\n"),
            (&mutual, "  grpcurl -cacert ca.pem -cert c.pem -key k.pem 127.0.0.1:1 list\n"),
        ] {
            let (grpc, http) = ("127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap());
            let said = Greeting { grpc, http, place: &place, tls }.to_string();
            assert!(said.contains(expected), "{said}");
            assert!(said.contains("http://127.0.0.1:2/metrics") && said.contains("/somewhere"), "{said}");
            assert!(said.ends_with("\nready\n"), "{said}");
        }
    }
}

//! `muster config kubeconfig`: the settings of the connection as kubectl reads them.

use std::path::Path;

use serde_json::json;

use crate::connection::{ConnectionFlags, KUBERNETES, NamespaceFlags};
use crate::failure::Failure;
use muster_proto::record::Kind;

/// The flags of `muster config kubeconfig`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// URL of the store's Kubernetes API (--kubernetes-listen) [default: the store's host, port 7480]
    #[arg(long, env = "MUSTER_KUBERNETES", value_name = "URL")]
    server: Option<String>,

    #[command(flatten)]
    namespace: NamespaceFlags,

    #[command(flatten)]
    connection: ConnectionFlags,
}

/// The kubeconfig. Certificates are named by their files, so that kubectl uses them when they are renewed.
pub(crate) fn text(flags: &Flags) -> Result<String, Failure> {
    let connection = flags.connection.resolve()?;
    let (store, files) = connection.store_credentials()?;
    let server = flags.server.clone().unwrap_or_else(|| server_beside(&store));
    let namespace = connection.namespaces(&flags.namespace).of(Kind::Pod);
    let absolute = |path: &Path| -> Result<String, Failure> {
        let path = std::path::absolute(path)
            .map_err(|error| Failure::usage(format!("{} is not a file path: {error}", path.display())))?;
        Ok(path.display().to_string())
    };
    let (mut cluster, mut user) = (json!({"server": server}), json!({}));
    if let Some([ca, cert, key]) = files {
        cluster["certificate-authority"] = absolute(ca)?.into();
        user["client-certificate"] = absolute(cert)?.into();
        user["client-key"] = absolute(key)?.into();
    }
    let name = "muster";
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": namespace.as_str()}}],
        "current-context": name,
    });
    // JSON is YAML, too.
    Ok(format!("{kubeconfig:#}\n"))
}

/// The Kubernetes API of the store at this URL, if it has the usual port.
fn server_beside(store: &str) -> String {
    let port = KUBERNETES.rsplit(':').next().unwrap_or_default();
    let (scheme, rest) = store.split_once("://").unwrap_or(("http", store));
    let authority = rest.split('/').next().unwrap_or_default();
    // The colons of an IPv6 address are in brackets.
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => host,
        _ => authority,
    };
    format!("{scheme}://{host}:{port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_beside_the_store() {
        for (store, expected) in [
            ("http://127.0.0.1:7400", "http://127.0.0.1:7480"),
            ("https://store.example:443/", "https://store.example:7480"),
            ("https://[::1]:7400", "https://[::1]:7480"),
            ("https://[::1]", "https://[::1]:7480"),
            ("https://store", "https://store:7480"),
        ] {
            assert_eq!(server_beside(store), expected, "{store}");
        }
    }
}

use std::fs;

use super::*;
use rcgen::{CertificateParams, KeyPair};

/// A directory with `cert.pem` and its `key.pem`, a foreign `other-key.pem`, and `junk.pem`.
fn files() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let cert = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    for (name, text) in [
        ("cert.pem", cert.pem()),
        ("key.pem", key.serialize_pem()),
        ("other-key.pem", other.serialize_pem()),
        ("junk.pem", "hello".to_owned()),
    ] {
        fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

/// What the flags come to: `plain`, `warned`, `mutual`, or the error's text with the directory cut out.
fn outcome(names: [Option<&str>; 3], insecure: bool, address: &str) -> String {
    let dir = files();
    let path = |name: Option<&str>| name.map(|name| dir.path().join(name));
    let [cert, key, ca] = names;
    let flags = TlsFlags { tls_cert: path(cert), tls_key: path(key), tls_client_ca: path(ca), insecure };
    match flags.security(address.parse().unwrap()) {
        Ok(Security::Plain { warning: None }) => "plain".to_owned(),
        Ok(Security::Plain { warning: Some(_) }) => "warned".to_owned(),
        Ok(Security::MutualTls(_)) => "mutual".to_owned(),
        Err(error) => error.to_string().replace(&format!("{}/", dir.path().display()), ""),
    }
}

const NONE: [Option<&str>; 3] = [None, None, None];
const ALL: [Option<&str>; 3] = [Some("cert.pem"), Some("key.pem"), Some("cert.pem")];

#[test]
fn an_address_others_can_reach_is_never_open_by_accident() {
    for (names, insecure, address, expected) in [
        (NONE, false, "127.0.0.1:7400", "plain"),
        (NONE, false, "127.8.0.1:7400", "plain"),
        (NONE, false, "[::1]:7400", "plain"),
        (NONE, false, "[::ffff:127.0.0.1]:7400", "plain"),
        (NONE, true, "127.0.0.1:7400", "plain"),
        (NONE, true, "0.0.0.0:7400", "warned"),
        (NONE, true, "[::]:7400", "warned"),
        (ALL, false, "0.0.0.0:7400", "mutual"),
        (ALL, false, "127.0.0.1:7400", "mutual"),
    ] {
        assert_eq!(outcome(names, insecure, address), expected, "{names:?} insecure={insecure} {address}");
    }
    for address in ["0.0.0.0:7400", "[::]:7400", "10.0.0.1:7400"] {
        let refusal = outcome(NONE, false, address);
        assert!(refusal.starts_with(address) && refusal.contains("--insecure"), "{refusal}");
    }
}

#[test]
fn an_unusable_flag_is_named_with_its_file() {
    let (cert, key) = (Some("cert.pem"), Some("key.pem"));
    for (names, expected) in [
        ([cert, None, None], "--tls-key is missing"),
        ([None, key, None], "--tls-cert is missing"),
        ([cert, key, None], "--tls-client-ca is missing"),
        ([Some("absent.pem"), key, cert], "--tls-cert: cannot read absent.pem"),
        ([cert, Some("absent.pem"), cert], "--tls-key: cannot read absent.pem"),
        ([Some("junk.pem"), key, cert], "--tls-cert: junk.pem holds no certificate"),
        ([cert, cert, cert], "--tls-key: cert.pem holds no private key"),
        ([cert, key, key], "--tls-client-ca: key.pem holds no certificate"),
        ([cert, Some("other-key.pem"), cert], "--tls-key: other-key.pem is not the key of cert.pem"),
    ] {
        let error = outcome(names, false, "127.0.0.1:0");
        assert!(error.starts_with(expected), "{names:?}: {error}");
    }
    assert!(outcome(ALL, true, "127.0.0.1:0").starts_with("--insecure contradicts"));
}

#[test]
fn the_same_flags_serve_the_client_side() {
    let dir = files();
    let path = |name: &str| Some(dir.path().join(name));
    let flags = TlsFlags {
        tls_cert: path("cert.pem"),
        tls_key: path("key.pem"),
        tls_client_ca: path("cert.pem"),
        insecure: false,
    };
    assert!(flags.client().unwrap().is_some());
    assert!(TlsFlags::default().client().unwrap().is_none());
    let broken = TlsFlags { tls_key: path("junk.pem"), ..flags };
    assert!(broken.client().unwrap_err().to_string().starts_with("--tls-key"));
}

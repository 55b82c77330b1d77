use super::*;
use std::path::Path;

fn flags() -> ConnectionFlags {
    ConnectionFlags { request_timeout: Duration::from_secs(10), ..Default::default() }
}

fn resolve(flags: &ConnectionFlags, context: &Context) -> Connection {
    super::resolve(flags, context).unwrap()
}

fn lab() -> Context {
    Context {
        store: vec!["https://lab:7400".to_owned()],
        controller: vec!["https://lab:7500".to_owned()],
        tls_ca: Some("/lab/ca".into()),
        tls_cert: Some("/lab/cert".into()),
        tls_key: Some("/lab/key".into()),
        namespace: Some("work".parse().unwrap()),
    }
}

#[test]
fn a_setting_comes_from_its_flag_then_the_context_then_the_default() {
    let alone = resolve(&flags(), &Context::default());
    assert_eq!(
        (alone.stores.as_slice(), alone.controllers.as_slice()),
        ([STORE.to_owned()].as_slice(), [CONTROLLER.to_owned()].as_slice())
    );
    assert!(alone.tls.is_empty());

    let in_lab = resolve(&flags(), &lab());
    assert_eq!(in_lab.stores, ["https://lab:7400"]);
    assert_eq!(in_lab.controllers, ["https://lab:7500"]);
    assert_eq!(in_lab.tls.cert.as_deref(), Some(Path::new("/lab/cert")));
    assert!(in_lab.store_uses_tls && in_lab.controller_uses_tls);

    let named = ConnectionFlags {
        store: vec!["https://x:1".to_owned(), "https://y:2".to_owned()],
        tls_ca: Some("/own/ca".into()),
        ..flags()
    };
    let named = resolve(&named, &lab());
    assert_eq!(named.stores, ["https://x:1", "https://y:2"]);
    assert_eq!(named.controllers, ["https://lab:7500"], "each setting is resolved separately");
    assert_eq!(
        named.tls,
        TlsFiles { ca: Some("/own/ca".into()), cert: Some("/lab/cert".into()), key: Some("/lab/key".into()) },
        "a certificate flag does not drop the other certificates of the context"
    );
    let alone = ConnectionFlags { tls_ca: Some("/own/ca".into()), ..flags() };
    let refused = resolve(&alone, &Context::default()).tls.read().unwrap_err().report("get");
    assert!(refused.contains("--tls-cert and --tls-key are missing"), "{refused}");
}

#[test]
fn certificates_of_a_context_are_not_used_for_a_plaintext_address_of_a_flag() {
    let here = ConnectionFlags { store: vec!["http://127.0.0.1:9".to_owned()], ..flags() };
    let settled = resolve(&here, &lab());
    assert!(!settled.store_uses_tls && settled.controller_uses_tls);
    let own = ConnectionFlags { tls_ca: Some("/own/ca".into()), ..here };
    assert!(resolve(&own, &lab()).store_uses_tls, "certificates from flags are used");
}

#[test]
fn a_context_given_by_name_does_not_lose_its_certificates_to_a_plaintext_address() {
    let file = ConfigFlags { context: Some("lab".to_owned()), ..Default::default() };
    let named = ConnectionFlags { file, ..flags() };
    let store = ConnectionFlags { store: vec!["http://a:1".to_owned()], ..named.clone() };
    let controller = ConnectionFlags { controller: vec!["http://a:1".to_owned()], ..named.clone() };
    for (flags, flag) in [(store, "--store"), (controller, "--controller")] {
        let refused = super::resolve(&flags, &lab()).unwrap_err().report("get");
        assert!(refused.contains(&format!("{flag} has an address without TLS")), "{refused}");
        assert!(refused.contains("context `lab` has certificates"), "{refused}");
        assert!(super::resolve(&flags, &Context::default()).is_ok(), "a context without certificates");
    }
    let other = ConnectionFlags { store: vec!["b:7400".to_owned()], ..named };
    let other = super::resolve(&other, &lab()).unwrap();
    assert!(other.store_uses_tls && !other.tls.is_empty(), "another address of the same Muster");
}

#[test]
fn the_namespace_depends_on_flag_context_and_kind() {
    let named = |name: &str| name.parse::<Namespace>().unwrap();
    let alone = resolve(&flags(), &Context::default()).namespaces(&NamespaceFlags::default());
    let in_lab = resolve(&flags(), &lab()).namespaces(&NamespaceFlags::default());
    let requested = resolve(&flags(), &lab()).namespaces(&NamespaceFlags { namespace: Some(named("n")) });
    for (namespaces, kind, expected) in [
        (&alone, Kind::Pod, "default"),
        (&alone, Kind::Lease, "kube-node-lease"),
        (&in_lab, Kind::Pod, "work"),
        (&in_lab, Kind::Lease, "kube-node-lease"),
        (&requested, Kind::Pod, "n"),
        (&requested, Kind::Lease, "n"),
    ] {
        assert_eq!(namespaces.of(kind), named(expected), "{kind}");
    }
}

#[tokio::test]
async fn an_unusable_address_is_refused_before_anything_is_sent() {
    for (store, expected) in [
        ("ftp://a", "must start with http"),
        ("https://a:1", "give --tls-ca, --tls-cert and --tls-key"),
        ("", "--store"),
    ] {
        let flags = ConnectionFlags { store: vec![store.to_owned()], ..flags() };
        let refused = resolve(&flags, &Context::default()).store().unwrap_err().report("get");
        assert!(refused.contains(expected), "{refused}");
    }
    for controller in ["https://a:1", "a b", "http://"] {
        let flags = ConnectionFlags { controller: vec![controller.to_owned()], ..flags() };
        let refused = resolve(&flags, &Context::default()).controllers().unwrap_err().report("fleet");
        assert!(refused.contains("is not the address of a controller"), "{refused}");
    }
    let bare = ConnectionFlags { controller: vec!["127.0.0.1:7500".to_owned()], ..flags() };
    assert!(resolve(&bare, &Context::default()).controllers().is_ok());
}

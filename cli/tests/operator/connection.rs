//! Addresses, contexts, certificates and namespaces.

use crate::harness::Harness;

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_store_is_named_with_a_hint() {
    let mut harness = Harness::empty();
    let stderr = harness.muster("get nodes --store http://127.0.0.1:1").await.failed(6);
    for expected in
        ["the store at http://127.0.0.1:1 cannot be reached", "muster up", "--store, MUSTER_STORE"]
    {
        assert!(stderr.contains(expected), "{stderr}");
    }
    let stderr = harness.muster("fleet --controller http://127.0.0.1:1").await.failed(6);
    assert!(stderr.contains("the controller at http://127.0.0.1:1 cannot be reached"), "{stderr}");
    let stderr = harness.muster("get nodes --store ftp://a").await.failed(2);
    assert!(stderr.contains("must start with http:// or https://"), "{stderr}");
    let stderr = harness.muster("get nodes --tls-ca x").await.failed(2);
    assert!(stderr.contains("--tls-cert and --tls-key are missing"), "{stderr}");

    let store = harness.start_store(&[]).await;
    harness.set_env("MUSTER_STORE", store.clone());
    harness.muster("get nodes").await;
    let stderr = harness.muster(&format!("fleet --controller {store}")).await.failed(1);
    assert!(stderr.contains("is not a controller, or does not support this call"), "{stderr}");
    harness.stop_store().await;
    harness.muster("get nodes").await.failed(6);
}

#[tokio::test(flavor = "multi_thread")]
async fn contexts_set_addresses_and_namespace() {
    let mut harness = Harness::empty();
    let store = harness.start_store(&[]).await;
    let stderr = harness.muster("config current-context").await.failed(3);
    assert!(stderr.contains("there is no current context"), "{stderr}");
    harness.muster(&format!("config set-context lab --store {store} -n shop")).await.ok();
    harness.muster("config set-context gone --store http://127.0.0.1:1").await.ok();
    assert_eq!(
        harness.muster("config current-context").await.ok(),
        "lab\n",
        "the first context becomes the current one"
    );
    let listed = harness.muster("config get-contexts").await.ok();
    assert!(listed.contains(&format!("*         lab    {store}")), "{listed}");

    let pod = "{kind: Pod, apiVersion: v1, metadata: {name: a}, spec: {containers: [{name: x, image: y}]}}";
    harness.muster_with_stdin("apply -f -", pod).await.ok();
    assert_eq!(harness.muster("get pods -A --no-headers").await.ok().split_whitespace().next(), Some("shop"));
    assert_eq!(
        harness.muster("get pods -o name").await.ok(),
        "pod/a\n",
        "the namespace of the context is used"
    );

    harness.muster("get nodes --context gone").await.failed(6);
    harness.muster("config use-context gone").await.ok();
    harness.muster("get nodes").await.failed(6);
    let stderr = harness.muster("get nodes --context nix").await.failed(3);
    assert!(stderr.contains("there is no context `nix`") && stderr.contains("gone, lab"), "{stderr}");
    let flag = harness.muster(&format!("get nodes --store {store}")).await;
    assert_eq!(flag.code, 0, "a flag comes before the context: {}", flag.err);
    harness.muster("config delete-context gone").await.ok();
    harness.muster("config current-context").await.failed(3);

    let file = harness.path(".config/muster/config.toml");
    assert!(std::fs::read_to_string(&file).unwrap().contains("[contexts.lab]"));
    std::fs::write(&file, "[contexts.lab]\nstroe = []\n").unwrap();
    let stderr = harness.muster("get nodes").await.failed(2);
    assert!(stderr.contains("config.toml") && stderr.contains("stroe"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_certificates_of_muster_certs_give_each_subject_its_rights() {
    let mut harness = Harness::empty();
    let made = harness.muster("certs pki store controller admin viewer node:worker-1").await.ok();
    assert!(made.contains("pki/admin.crt   admin of muster:admins"), "{made}");
    let stderr = harness.muster("certs pki admin").await.failed(5);
    assert!(stderr.contains("pki/admin.crt exists, and existing files are not overwritten"), "{stderr}");

    let file = |name: &str| harness.path("pki").join(name).display().to_string();
    let flags = [
        format!("--tls-cert={}", file("store.crt")),
        format!("--tls-key={}", file("store.key")),
        format!("--tls-client-ca={}", file("ca.crt")),
    ];
    let store = harness.start_store(&flags).await.replace("http://127.0.0.1", "https://localhost");
    for (name, cert) in [("admin", "admin"), ("viewer", "viewer"), ("node", "nodes/worker-1/tls")] {
        let set = format!(
            "config set-context {name} --store {store} --tls-ca pki/ca.crt --tls-cert pki/{cert}.crt --tls-key pki/{cert}.key"
        );
        harness.muster(&set).await.ok();
    }
    let node = "{kind: Node, apiVersion: v1, metadata: {name: worker-1}}";
    let denied = harness.muster_with_stdin("create -f - --context viewer", node).await.failed(4);
    assert!(denied.contains("use another --tls-cert or --context"), "{denied}");
    harness
        .muster_with_stdin("create -f - --context node", &node.replace("worker-1", "worker-2"))
        .await
        .failed(4);
    harness.muster_with_stdin("create -f - --context node", node).await.ok();
    assert_eq!(harness.muster("get nodes -o name --context viewer").await.ok(), "node/worker-1\n");
    harness.muster("get nodes --context node").await.failed(4);
    harness.muster("delete node worker-1 --context admin").await.ok();
    let clear = harness.muster(&format!("get nodes --store {}", store.replace("https", "http"))).await;
    let clear = clear.failed(6);
    assert!(clear.contains("uses TLS, but the address is http://"), "{clear}");
    let named = format!("get nodes --context admin --store {}", store.replace("https", "http"));
    let named = harness.muster(&named).await.failed(2);
    assert!(named.contains("context `admin` has certificates"), "{named}");
    // An own certificate for a context keeps its CA.
    let own = "get nodes -o name --context admin --tls-cert pki/viewer.crt --tls-key pki/viewer.key";
    assert_eq!(harness.muster(own).await.code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn https_to_a_store_without_tls_is_explained() {
    let mut harness = Harness::empty();
    harness.muster("certs pki admin").await.ok();
    let store = harness.start_store(&[]).await.replace("http://127.0.0.1", "https://localhost");
    let flags = "--tls-ca pki/ca.crt --tls-cert pki/admin.crt --tls-key pki/admin.key";
    let stderr = harness.muster(&format!("get nodes --store {store} {flags}")).await.failed(6);
    assert!(stderr.contains("does not use TLS, but the address is https://"), "{stderr}");
    assert!(stderr.contains("write http://"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_file_given_by_name_must_exist() {
    let mut harness = Harness::with_store().await;
    let stderr = harness.muster("get nodes --config typo.toml").await.failed(2);
    assert!(stderr.contains("typo.toml does not exist") && stderr.contains("set-context"), "{stderr}");
    for command in ["get-contexts", "current-context", "use-context a", "delete-context a"] {
        harness.muster(&format!("config {command} --config typo.toml")).await.failed(2);
    }
    harness.muster("config set-context a --config typo.toml").await.ok();
    assert_eq!(harness.muster("get nodes --config typo.toml").await.code, 0, "set-context creates the file");
    harness.set_env("MUSTER_CONTEXTS", "other.toml");
    let stderr = harness.muster("get nodes").await.failed(2);
    assert!(stderr.contains("other.toml does not exist"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_file_keeps_its_relative_paths() {
    let harness = Harness::empty();
    std::fs::create_dir(harness.path("sub")).unwrap();
    let text = "[contexts.lab]\ntls-ca = \"lab/ca.crt\"\n\n[contexts.other]\n";
    let file = harness.file("sub/c.toml", text);
    for context in ["lab", "other", "lab"] {
        harness.muster(&format!("config use-context {context} --config sub/c.toml")).await.ok();
    }
    assert_eq!(std::fs::read_to_string(file).unwrap(), format!("current-context = \"lab\"\n\n{text}"));
    let stderr = harness.muster("get nodes --config sub/c.toml --tls-cert x --tls-key y").await.failed(2);
    assert!(stderr.contains("sub/lab/ca.crt"), "the context's CA is kept: {stderr}");
    harness
        .file("sub/c.toml", &text.replace("lab/ca.crt\"", "lab/ca.crt\"\ntls-cert = \"x\"\ntls-key = \"y\""));
    let stderr = harness.muster("get nodes --config sub/c.toml --context lab").await.failed(2);
    assert!(stderr.contains("sub/lab/ca.crt"), "relative to the config file: {stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_namespace_of_the_variable_is_a_default_and_conflicts_with_no_flag() {
    let mut harness = Harness::with_store().await;
    harness.set_env("MUSTER_NAMESPACE", "shop");
    let pod = |meta: &str| {
        format!(
            "{{kind: Pod, apiVersion: v1, metadata: {{{meta}}}, spec: {{containers: [{{name: x, image: y}}]}}}}"
        )
    };
    harness.muster_with_stdin("apply -f -", &pod("name: a")).await.ok();
    harness.muster_with_stdin("apply -f -", &pod("name: b, namespace: other")).await.ok();
    assert_eq!(harness.muster("get pods -o name").await.ok(), "pod/a\n");
    assert_eq!(
        harness.muster("get pods -o name -n other").await.ok(),
        "pod/b\n",
        "a flag comes before the variable"
    );
    assert_eq!(harness.muster("get pods -o name -A").await.ok(), "pod/b\npod/a\n");
    harness.muster("get pods -A -n other").await.conflicting_arguments();
    let lease = "{kind: Lease, apiVersion: v1, metadata: {name: a}, spec: {holderIdentity: a, \
                 leaseDurationSeconds: 40}}";
    harness.muster_with_stdin("apply -f -", lease).await.ok();
    assert_eq!(
        harness.muster("get leases -o name").await.ok(),
        "lease/a\n",
        "the default for leases is the namespace of node leases"
    );
    harness.set_env("MUSTER_NAMESPACE", "Not_A_Name");
    let stderr = harness.muster("get pods").await.failed(2);
    assert!(stderr.contains("MUSTER_NAMESPACE: `Not_A_Name`"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_accepts_connections_and_never_answers_times_out() {
    let mut harness = Harness::empty();
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    harness.set_env("MUSTER_CONTROLLER", format!("http://{}", mute.local_addr().unwrap()));
    harness.set_env("MUSTER_REQUEST_TIMEOUT", "300ms");
    for command in ["drain a", "drain a --plan", "fleet -w", "fleet", "explain node a"] {
        let stderr = harness.muster(command).await.failed(6);
        assert!(stderr.contains("the controller at http://127.0.0.1:"), "{command}: {stderr}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_standard_error_does_not_change_the_exit_code() {
    let harness = Harness::empty();
    let mut command = harness.command("get nodes --store ftp://a");
    let mut child = command.spawn().unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(2));
}

//! Where Muster is, and who we are to it.

use crate::harness::Stage;

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_not_there_is_named_with_a_way_out() {
    let mut stage = Stage::empty();
    let complaint = stage.muster("get nodes --store http://127.0.0.1:1").await.refused(6);
    for said in ["the store at http://127.0.0.1:1 cannot be reached", "muster up", "--store, MUSTER_STORE"] {
        assert!(complaint.contains(said), "{complaint}");
    }
    let complaint = stage.muster("fleet --controller http://127.0.0.1:1").await.refused(6);
    assert!(complaint.contains("the controller at http://127.0.0.1:1 cannot be reached"), "{complaint}");
    let complaint = stage.muster("get nodes --store ftp://a").await.refused(2);
    assert!(complaint.contains("must start with http:// or https://"), "{complaint}");
    let complaint = stage.muster("get nodes --tls-ca x").await.refused(2);
    assert!(complaint.contains("--tls-cert and --tls-key is missing"), "{complaint}");

    let store = stage.start_store(&[]).await;
    stage.say("MUSTER_STORE", store.clone());
    stage.muster("get nodes").await;
    let complaint = stage.muster(&format!("fleet --controller {store}")).await.refused(1);
    assert!(complaint.contains("is no controller that knows this call"), "{complaint}");
    stage.stop_store().await;
    stage.muster("get nodes").await.refused(6);
}

#[tokio::test(flavor = "multi_thread")]
async fn contexts_say_where_muster_is() {
    let mut stage = Stage::empty();
    let store = stage.start_store(&[]).await;
    let complaint = stage.muster("config current-context").await.refused(3);
    assert!(complaint.contains("no context is in use"), "{complaint}");
    stage.muster(&format!("config set-context lab --store {store} -n shop")).await.ok();
    stage.muster("config set-context gone --store http://127.0.0.1:1").await.ok();
    assert_eq!(stage.muster("config current-context").await.ok(), "lab\n", "the first one is in use");
    let listed = stage.muster("config get-contexts").await.ok();
    assert!(listed.contains(&format!("*         lab    {store}")), "{listed}");

    let pod = "{kind: Pod, apiVersion: v1, metadata: {name: a}, spec: {containers: [{name: x, image: y}]}}";
    stage.piped("apply -f -", pod).await.ok();
    assert_eq!(stage.muster("get pods -A --no-headers").await.ok().split_whitespace().next(), Some("shop"));
    assert_eq!(stage.muster("get pods -o name").await.ok(), "pod/a\n", "the context has a namespace too");

    stage.muster("get nodes --context gone").await.refused(6);
    stage.muster("config use-context gone").await.ok();
    stage.muster("get nodes").await.refused(6);
    let complaint = stage.muster("get nodes --context nix").await.refused(3);
    assert!(
        complaint.contains("there is no context `nix`") && complaint.contains("gone, lab"),
        "{complaint}"
    );
    let flag = stage.muster(&format!("get nodes --store {store}")).await;
    assert_eq!(flag.code, 0, "a flag comes before the context: {}", flag.err);
    stage.muster("config delete-context gone").await.ok();
    stage.muster("config current-context").await.refused(3);

    let file = stage.path(".config/muster/config.toml");
    assert!(std::fs::read_to_string(&file).unwrap().contains("[contexts.lab]"));
    std::fs::write(&file, "[contexts.lab]\nstroe = []\n").unwrap();
    let complaint = stage.muster("get nodes").await.refused(2);
    assert!(complaint.contains("config.toml") && complaint.contains("stroe"), "{complaint}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_certificates_it_makes_let_everybody_in_as_who_they_are() {
    let mut stage = Stage::empty();
    let made = stage.muster("certs pki store controller admin viewer node:worker-1").await.ok();
    assert!(made.contains("pki/admin.crt   admin of muster:admins"), "{made}");
    let complaint = stage.muster("certs pki admin").await.refused(5);
    assert!(complaint.contains("pki/admin.crt exists, and nothing is overwritten"), "{complaint}");

    let file = |name: &str| stage.path("pki").join(name).display().to_string();
    let flags = [
        format!("--tls-cert={}", file("store.crt")),
        format!("--tls-key={}", file("store.key")),
        format!("--tls-client-ca={}", file("ca.crt")),
    ];
    let store = stage.start_store(&flags).await.replace("http://127.0.0.1", "https://localhost");
    for (name, cert) in [("admin", "admin"), ("viewer", "viewer"), ("node", "nodes/worker-1/tls")] {
        let set = format!(
            "config set-context {name} --store {store} --tls-ca pki/ca.crt --tls-cert pki/{cert}.crt --tls-key pki/{cert}.key"
        );
        stage.muster(&set).await.ok();
    }
    let node = "{kind: Node, apiVersion: v1, metadata: {name: worker-1}}";
    let denied = stage.piped("create -f - --context viewer", node).await.refused(4);
    assert!(denied.contains("--tls-cert, or another --context"), "{denied}");
    stage.piped("create -f - --context node", &node.replace("worker-1", "worker-2")).await.refused(4);
    stage.piped("create -f - --context node", node).await.ok();
    assert_eq!(stage.muster("get nodes -o name --context viewer").await.ok(), "node/worker-1\n");
    stage.muster("get nodes --context node").await.refused(4);
    stage.muster("delete node worker-1 --context admin").await.ok();
    let clear = stage.muster(&format!("get nodes --store {}", store.replace("https", "http"))).await;
    assert_eq!(clear.code, 6, "a store in TLS is not spoken to in clear: {}", clear.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_file_that_was_named_has_to_be_there() {
    let mut stage = Stage::with_store().await;
    let complaint = stage.muster("get nodes --config typo.toml").await.refused(2);
    assert!(
        complaint.contains("typo.toml does not exist") && complaint.contains("set-context"),
        "{complaint}"
    );
    for command in ["get-contexts", "current-context", "use-context a", "delete-context a"] {
        stage.muster(&format!("config {command} --config typo.toml")).await.refused(2);
    }
    stage.muster("config set-context a --config typo.toml").await.ok();
    assert_eq!(stage.muster("get nodes --config typo.toml").await.code, 0, "it is made by that");
    stage.say("MUSTER_CONTEXTS", "other.toml");
    let complaint = stage.muster("get nodes").await.refused(2);
    assert!(complaint.contains("other.toml does not exist"), "{complaint}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_file_is_written_with_its_paths_as_they_were() {
    let stage = Stage::empty();
    std::fs::create_dir(stage.path("sub")).unwrap();
    let text = "[contexts.lab]\ntls-ca = \"lab/ca.crt\"\n\n[contexts.other]\n";
    let file = stage.file("sub/c.toml", text);
    for context in ["lab", "other", "lab"] {
        stage.muster(&format!("config use-context {context} --config sub/c.toml")).await.ok();
    }
    assert_eq!(std::fs::read_to_string(file).unwrap(), format!("current-context = \"lab\"\n\n{text}"));
    let complaint = stage.muster("get nodes --config sub/c.toml --tls-cert x --tls-key y").await.refused(2);
    assert!(complaint.contains("--tls-ca is missing"), "certificates come from one place: {complaint}");
    stage
        .file("sub/c.toml", &text.replace("lab/ca.crt\"", "lab/ca.crt\"\ntls-cert = \"x\"\ntls-key = \"y\""));
    let complaint = stage.muster("get nodes --config sub/c.toml --context lab").await.refused(2);
    assert!(complaint.contains("sub/lab/ca.crt"), "named from where the file is: {complaint}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_of_the_variable_is_the_usual_one_and_contradicts_nothing() {
    let mut stage = Stage::with_store().await;
    stage.say("MUSTER_NAMESPACE", "shop");
    let pod = |meta: &str| {
        format!(
            "{{kind: Pod, apiVersion: v1, metadata: {{{meta}}}, spec: {{containers: [{{name: x, image: y}}]}}}}"
        )
    };
    stage.piped("apply -f -", &pod("name: a")).await.ok();
    stage.piped("apply -f -", &pod("name: b, namespace: other")).await.ok();
    assert_eq!(stage.muster("get pods -o name").await.ok(), "pod/a\n");
    assert_eq!(stage.muster("get pods -o name -n other").await.ok(), "pod/b\n", "a flag comes before it");
    assert_eq!(stage.muster("get pods -o name -A").await.ok(), "pod/b\npod/a\n");
    stage.muster("get pods -A -n other").await.refused_by_arguments();
    let lease = "{kind: Lease, apiVersion: v1, metadata: {name: a}, spec: {holderIdentity: a, \
                 leaseDurationSeconds: 40}}";
    stage.piped("apply -f -", lease).await.ok();
    assert_eq!(stage.muster("get leases -o name").await.ok(), "lease/a\n", "leases are where nodes' are");
    stage.say("MUSTER_NAMESPACE", "Not_A_Name");
    let complaint = stage.muster("get pods").await.refused(2);
    assert!(complaint.contains("MUSTER_NAMESPACE: `Not_A_Name`"), "{complaint}");
}

/// Accepts connections and says nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_says_nothing_is_not_waited_for_without_end() {
    let mut stage = Stage::empty();
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    stage.say("MUSTER_CONTROLLER", format!("http://{}", mute.local_addr().unwrap()));
    stage.say("MUSTER_REQUEST_TIMEOUT", "300ms");
    for command in ["drain a", "drain a --plan", "fleet -w", "fleet", "explain node a"] {
        let complaint = stage.muster(command).await.refused(6);
        assert!(complaint.contains("the controller at http://127.0.0.1:"), "{command}: {complaint}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_complaint_that_nobody_reads_keeps_its_code() {
    let stage = Stage::empty();
    let mut command = stage.command("get nodes --store ftp://a");
    let mut child = command.spawn().unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(2));
}

//! What somebody who lives in kubectl expects: flags before the command, outputs, waits, dry runs, diffs and edits.

use std::process::Command;

use muster_proto::key::Key;
use muster_proto::node::Node;
use muster_proto::pb;

use crate::fake_controller::{Call, FakeController, Responses};
use crate::harness::{Harness, sample};

fn node(name: &str, more: &str) -> String {
    format!("{{kind: Node, apiVersion: v1, metadata: {{name: {name}{more}}}}}\n")
}

fn pod(name: &str) -> String {
    format!(
        "{{kind: Pod, apiVersion: v1, metadata: {{name: {name}}}, spec: {{containers: [{{name: x, image: y}}]}}}}\n"
    )
}

/// A store with the nodes n10, n2 and worker-1, and the pods p10 and p2.
async fn with_names() -> Harness {
    let harness = Harness::with_store().await;
    let all = [
        node("n10", ", labels: {rack: '7', example.com/tier: x}"),
        node("n2", ""),
        sample("node.yaml"),
        pod("p10"),
        pod("p2"),
    ];
    harness.muster_with_stdin("apply -f -", &all.join("\n---\n")).await.ok();
    harness
}

#[tokio::test(flavor = "multi_thread")]
async fn flags_of_the_connection_may_stand_before_the_command() {
    let mut harness = Harness::empty();
    let store = harness.start_store(&[]).await;
    harness.muster_with_stdin(&format!("--store {store} -n shop apply -f -"), &pod("a")).await.ok();
    for command in ["--store={} -n shop get pods -o name", "get pods -o name -n shop --store {}"] {
        assert_eq!(harness.muster(&command.replace("{}", &store)).await.ok(), "pod/a\n", "{command}");
    }
    harness.muster(&format!("--store {store} config set-context lab")).await.ok();
    assert_eq!(harness.muster("--context lab get pods -A -o name").await.ok(), "pod/a\n");
    let wrong = harness.muster("--nix get nodes").await;
    assert_eq!(wrong.code, 2, "{}", wrong.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_listed_in_their_natural_order_or_by_a_path() {
    let harness = with_names().await;
    assert_eq!(harness.muster("get nodes -o name").await.ok(), "node/n2\nnode/n10\nnode/worker-1\n");
    assert_eq!(harness.muster("get pods -o name").await.ok(), "pod/p2\npod/p10\n");
    let by_version = harness.muster("get nodes -o name --sort-by={.metadata.resourceVersion}").await.ok();
    assert_eq!(by_version, "node/n10\nnode/n2\nnode/worker-1\n", "in the order of their creation");
    let by_cpu = harness.muster("get nodes -o name --sort-by .status.capacity.cpu").await.ok();
    assert!(by_cpu.ends_with("node/worker-1\n"), "what has no value comes first: {by_cpu}");
    let wrong = harness.muster("get nodes --sort-by .a[").await;
    assert!(wrong.code == 2 && wrong.err.contains("expected a number, a quoted name"), "{}", wrong.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_printed_by_templates_and_columns() {
    let harness = with_names().await;
    for (format, expected) in [
        ("jsonpath={.items[*].metadata.name}", "n2 n10 worker-1"),
        (r#"jsonpath={range.items[*]}{.metadata.name}{"\n"}{end}"#, ""),
        (r#"jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}"#, "True"),
        ("custom-columns=NAME:.metadata.name,RACK:.metadata.labels.rack", ""),
    ] {
        let shown = harness.muster(&format!("get nodes -o {format}")).await;
        if !expected.is_empty() {
            assert_eq!(shown.ok(), expected, "{format}");
        } else if format.starts_with("custom") {
            assert_eq!(shown.ok(), "NAME       RACK\nn2         <none>\nn10        7\nworker-1   <none>\n");
        } else {
            assert!(shown.code == 2 && shown.err.contains("expected a path"), "`range` needs a space");
        }
    }
    let one = harness.muster("get node worker-1 -o jsonpath={.metadata.name}:{.spec.podCIDR}").await;
    assert_eq!(one.ok(), "worker-1:10.10.3.0/24", "one record is not a list");
    let mut range = harness.command("get nodes");
    range.args(["-o", r#"jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}"#]);
    let lines = tokio::task::spawn_blocking(move || range.output().unwrap()).await.unwrap();
    assert_eq!(String::from_utf8(lines.stdout).unwrap(), "n2\nn10\nworker-1\n");
    let wrong = harness.muster("get nodes -o table").await;
    assert!(wrong.code == 2 && wrong.err.contains("jsonpath=TEMPLATE"), "{}", wrong.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_are_columns() {
    let harness = with_names().await;
    let shown = harness.muster("get nodes n10 n2 -L rack,example.com/tier").await.ok();
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(lines[0].ends_with(&["RACK", "TIER"]), "{shown}");
    assert!(lines[1].ends_with(&["7", "x"]) && lines[2].ends_with(&["<none>", "<none>"]), "{shown}");
    assert!(harness.muster("get nodes --show-labels").await.ok().contains("example.com/tier=x,rack=7"));
}

#[tokio::test(flavor = "multi_thread")]
async fn several_kinds_are_listed_together() {
    let harness = with_names().await;
    let shown = harness.muster("get nodes,pods").await.ok();
    let (nodes, pods) = shown.split_once("\n\n").unwrap();
    assert!(nodes.starts_with("NAME ") && nodes.contains("\nnode/n2 "), "{shown}");
    assert!(pods.starts_with("NAME ") && pods.contains("\npod/p2 "), "{shown}");
    assert_eq!(harness.muster("get pod/p2 node/n2 -o name").await.ok(), "pod/p2\nnode/n2\n");
    let list = harness.muster("get no,po -o jsonpath={.kind}:{.items[*].kind}").await.ok();
    assert_eq!(list, "List:Node Node Node Pod Pod");
    for (command, expected) in [
        ("get nodes,pods n2", "names cannot be combined with several kinds"),
        ("get nodes,pods -w", "only one kind can be watched"),
    ] {
        let refused = harness.muster(command).await.failed(2);
        assert!(refused.contains(expected), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_and_pods_are_found_by_their_status() {
    let harness = with_names().await;
    assert_eq!(harness.muster("get nodes --status Unknown -o name").await.ok(), "node/n2\nnode/n10\n");
    assert_eq!(harness.muster("get nodes --status ready,draining -o name").await.ok(), "node/worker-1\n");
    assert_eq!(harness.muster("get pods --status Pending -o name").await.ok(), "pod/p2\npod/p10\n");
    let none = harness.muster("get nodes --status NotReady").await;
    assert_eq!((none.code, none.out.as_str()), (0, ""));
    assert!(none.err.contains("the statuses are Ready, NotReady, Unknown"), "{}", none.err);
    let refused = harness.muster("get leases --status Ready").await.failed(2);
    assert!(refused.contains("leases have no STATUS column"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_ends_when_the_condition_is_met() {
    let harness = with_names().await;
    assert_eq!(
        harness.muster("wait node/worker-1 --for=condition=Ready").await.ok(),
        "node/worker-1 condition met\n"
    );
    let mut created = harness.start("wait node/n3 --for=create --timeout=60s");
    let mut labeled = harness.start("wait node n2 --for=jsonpath={.metadata.labels.rack}=9 --timeout=60s");
    let mut deleted = harness.start("wait nodes n10 --for=delete --timeout=60s");
    harness.muster_with_stdin("create -f -", &node("n3", "")).await.ok();
    created.wait_for_line(&["node/n3 condition met"]).await;
    harness.muster("label node n2 rack=9").await.ok();
    labeled.wait_for_line(&["node/n2 condition met"]).await;
    harness.muster("delete node n10").await.ok();
    deleted.wait_for_line(&["node/n10 condition met"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_in_vain_says_what_it_found() {
    let harness = with_names().await;
    for (command, code, expected) in [
        ("wait node/n2 --for=condition=Ready --timeout=10ms", 1, "it has no condition Ready"),
        ("wait node/worker-1 --for=condition=Ready=False --timeout=10ms", 1, "its Ready is True"),
        ("wait node/worker-1 --for=delete --timeout=10ms", 1, "it exists"),
        ("wait node/nix --for=condition=Ready --timeout=60s", 3, "node/nix does not exist"),
        ("wait nodes --for=delete --timeout=10ms", 2, "no nodes are given"),
        ("wait event/a --for=delete --timeout=10ms", 4, "events are read-only"),
    ] {
        let stderr = harness.muster(command).await.failed(code);
        assert!(stderr.contains(expected), "{command}: {stderr}");
    }
    assert_eq!(harness.muster("wait node/n2 --for=ready").await.code, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_can_be_waited_for() {
    let harness = with_names().await;
    harness.muster_with_stdin("apply -f -", &sample("pod.yaml")).await.ok();
    let mut deletion = harness.start("delete pod web-1 -n shop --wait --timeout=60s");
    deletion.wait_for_line(&["pod/web-1 terminates within 45s"]).await;
    harness.muster("delete pod web-1 -n shop --force").await.ok();
    deletion.wait_for_line(&["pod/web-1 deleted"]).await;

    harness.muster_with_stdin("apply -f -", &sample("pod.yaml")).await.ok();
    let late = harness.muster("delete pod web-1 -n shop --wait --timeout=10ms").await.failed(1);
    assert!(late.contains("it is still being deleted"), "{late}");
    assert_eq!(harness.muster("delete node n2 --wait").await.ok(), "node/n2 deleted\n", "it is gone at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_says_what_would_happen_and_writes_nothing() {
    let harness = with_names().await;
    let before = harness.muster("get nodes,pods -o json").await.ok();
    for (command, input, expected) in [
        ("apply -f - --dry-run", node("n3", ""), "node/n3 created (dry run)\n"),
        ("apply -f - --dry-run=client", node("n2", ", labels: {a: b}"), "node/n2 configured (dry run)\n"),
        ("apply -f - --dry-run", node("n2", ""), "node/n2 unchanged (dry run)\n"),
        ("create -f - --dry-run", node("n3", ""), "node/n3 created (dry run)\n"),
        ("delete node n2 --dry-run", String::new(), "node/n2 deleted (dry run)\n"),
        ("label node n2 a=b --dry-run", String::new(), "node/n2 labeled (dry run)\n"),
        ("annotate node n2 a=b --dry-run", String::new(), "node/n2 annotated (dry run)\n"),
        ("taint node n2 a:NoSchedule --dry-run", String::new(), "node/n2 tainted (dry run)\n"),
    ] {
        assert_eq!(harness.muster_with_stdin(command, &input).await.ok(), expected, "{command}");
    }
    harness.muster_with_stdin("create -f - --dry-run", &node("n2", "")).await.failed(5);
    harness.muster("delete node nix --dry-run").await.failed(3);
    let server = harness.muster("delete node n2 --dry-run=server").await;
    assert!(server.code == 2 && server.err.contains("there is only --dry-run=client"), "{}", server.err);
    assert_eq!(harness.muster("get nodes,pods -o json").await.ok(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_diff_shows_what_apply_would_change() {
    let harness = with_names().await;
    let changed = harness.muster_with_stdin("diff -f -", &node("n2", ", labels: {rack: '9'}")).await;
    assert_eq!((changed.code, changed.err.as_str()), (1, ""));
    assert!(changed.out.starts_with("--- node/n2 (current)\n+++ node/n2 (applied)\n"), "{}", changed.out);
    assert!(changed.out.contains("\n+    rack: \"9\"\n"), "{}", changed.out);
    assert_eq!(harness.muster_with_stdin("diff -f -", &node("n2", "")).await.ok(), "");
    let new = harness.muster_with_stdin("diff -f -", &node("n3", "")).await;
    assert!(new.code == 1 && new.out.contains("\n+  name: n3\n"), "{}", new.out);
    harness.muster_with_stdin("diff -f -", "{kind: Node}").await.failed(2);
}

/// Sets an editor that runs this shell script with the file as `$1`.
fn set_editor(harness: &mut Harness, script: &str) {
    let file = harness.file("editor.sh", script);
    harness.set_env("EDITOR", format!("sh {file}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_keeps_the_changes_of_others() {
    let mut harness = with_names().await;
    set_editor(&mut harness, "true\n");
    assert_eq!(harness.muster("edit node n2").await.ok(), "node/n2 unchanged: nothing was edited\n");

    let muster = env!("CARGO_BIN_EXE_muster");
    let other = format!("{muster} label node n2 other=1 >&2\n");
    let add = "sed -i 's/^  name: n2/  name: n2\\n  labels: {own: \"1\"}/' \"$1\"\n";
    set_editor(&mut harness, &format!("{other}{add}"));
    let edited = harness.muster("edit node/n2").await;
    assert_eq!((edited.code, edited.out.as_str()), (0, "node/n2 edited\n"), "{}", edited.err);
    let stored: Node = harness.client().get(&Key::node("n2".parse().unwrap())).await.unwrap();
    let labels: Vec<&str> = stored.meta.labels.keys().map(String::as_str).collect();
    assert_eq!(labels, ["other", "own"], "the change of another client, and the edit");

    set_editor(&mut harness, "sed -i /own:/d \"$1\"\n");
    assert_eq!(harness.muster("edit node n2").await.ok(), "node/n2 edited\n");
    let stored: Node = harness.client().get(&Key::node("n2".parse().unwrap())).await.unwrap();
    let labels: Vec<&str> = stored.meta.labels.keys().map(String::as_str).collect();
    assert_eq!(labels, ["other"], "what is removed from the text is removed from the record");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_that_is_refused_opens_the_editor_again_with_the_reason() {
    let mut harness = with_names().await;
    // The first round writes nonsense; the second one must find the reason, and repairs it.
    let script = "if grep -q '^#.*nix' \"$1\"; then sed -i 's/^  nix: 1/  labels: {own: \"1\"}/' \"$1\"\n\
                  else sed -i 's/^  name: n2/  name: n2\\n  nix: 1/' \"$1\"; fi\n";
    set_editor(&mut harness, script);
    let edited = harness.muster("edit node n2").await;
    assert_eq!((edited.code, edited.out.as_str()), (0, "node/n2 edited\n"), "{}", edited.err);

    // The label that this edit sets is set by another client to another value: the second round gives up.
    let muster = env!("CARGO_BIN_EXE_muster");
    let script = format!(
        "if grep -q 'changed by others' \"$1\"; then exit 0; fi\n\
         {muster} label node n10 rack=8 --overwrite >&2\nsed -i 's/rack: \"7\"/rack: \"9\"/' \"$1\"\n"
    );
    set_editor(&mut harness, &script);
    let lost = harness.muster("edit node n10").await.failed(1);
    assert!(lost.contains("metadata.labels.rack was changed by others"), "{lost}");
    let kept = lost.split("your text is in ").nth(1).unwrap().trim();
    assert!(std::fs::read_to_string(kept).unwrap().contains("rack: \"9\""));
    std::fs::remove_file(kept).unwrap();

    set_editor(&mut harness, "sed -i 's/name: n2/name: n3/' \"$1\"\n");
    let renamed = harness.muster("edit node n2").await;
    assert!(renamed.code == 1 && renamed.err.contains("metadata.name cannot be edited"), "{}", renamed.err);
    set_editor(&mut harness, "exit 3\n");
    let stderr = harness.muster("edit node n2").await.failed(1);
    assert!(stderr.contains("the editor") && stderr.contains("exit status: 3"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn annotations_are_changed_and_removed_taints_are_called_untainted() {
    let harness = with_names().await;
    let mut annotate = harness.command("annotate node n2");
    annotate.arg("note=new fans: since May");
    let output = tokio::task::spawn_blocking(move || annotate.output().unwrap()).await.unwrap();
    assert_eq!(output.stdout, b"node/n2 annotated\n");
    let note = harness.muster("get node n2 -o jsonpath={.metadata.annotations.note}").await.ok();
    assert_eq!(note, "new fans: since May");
    harness.muster("annotate node n2 note=x").await.failed(4);
    assert_eq!(harness.muster("annotate node n2 note-").await.ok(), "node/n2 annotated\n");

    assert_eq!(harness.muster("taint node n2 a=1:NoSchedule").await.ok(), "node/n2 tainted\n");
    assert_eq!(harness.muster("taint node n2 b:NoSchedule a-").await.ok(), "node/n2 modified\n");
    assert_eq!(harness.muster("taint node n2 b:NoSchedule-").await.ok(), "node/n2 untainted\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_and_kinds_are_listed_with_their_versions() {
    let mut harness = Harness::with_store().await;
    let fleet = pb::Fleet {
        controller: "c1".to_owned(),
        leader: "c1".to_owned(),
        state: pb::FleetState::Normal.into(),
        nodes: 3,
        ready_nodes: 2,
        ..Default::default()
    };
    let controller = FakeController::start(Responses { fleet, ..Responses::default() }).await;
    harness.set_env("MUSTER_CONTROLLER", controller.url.clone());
    let version = env!("CARGO_PKG_VERSION");
    let client = harness.muster("version --client").await.ok();
    assert!(client.contains(&format!("client      {version}")), "{client}");
    // The fake controller does not say its version.
    let shown = harness.muster("version").await;
    assert!(shown.out.contains(&format!("store        {version}   ")), "{}{}", shown.out, shown.err);
    let info = harness.muster("cluster-info").await.ok();
    assert!(info.contains("store        http://127.0.0.1:"), "{info}");
    assert!(info.contains("leads as c1: Normal, 2 of 3 nodes ready"), "{info}");
    harness.set_env("MUSTER_CONTROLLER", "http://127.0.0.1:1");
    let gone = harness.muster("cluster-info").await;
    assert!(gone.out.contains("http://127.0.0.1:1") && gone.out.contains("unreachable"), "{}", gone.out);
    gone.failed(6);

    let kinds = harness.muster("api-resources").await.ok();
    assert!(kinds.starts_with("NAME ") && kinds.contains("budgets"), "{kinds}");
    assert_eq!(kinds.lines().count(), 1 + muster_proto::record::Kind::ALL.len(), "{kinds}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_controllers_the_leader_is_called() {
    let mut harness = Harness::with_store().await;
    let fleet = |own: &str, state: pb::FleetState| pb::Fleet {
        controller: own.to_owned(),
        leader: "b".to_owned(),
        state: state.into(),
        ..Default::default()
    };
    let start = |fleet| FakeController::start(Responses { fleet, ..Responses::default() });
    let standby = start(fleet("a", pb::FleetState::Standby)).await;
    let leader = start(fleet("b", pb::FleetState::Normal)).await;
    harness.set_env("MUSTER_CONTROLLER", format!("http://127.0.0.1:1,{},{}", standby.url, leader.url));
    harness.muster("cordon n1 --reason fans").await.ok();
    assert!(leader.calls().iter().any(|call| matches!(call, Call::Cordon(_))));
    assert!(!standby.calls().iter().any(|call| matches!(call, Call::Cordon(_))));
    harness.set_env("MUSTER_CONTROLLER", format!("http://127.0.0.1:1,{}", standby.url));
    let shown = harness.muster("fleet").await.ok();
    assert!(shown.contains("b (answer from a)"), "a standby answers if nobody leads: {shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn completion_knows_the_names_of_records() {
    let harness = with_names().await;
    let complete = |line: &'static str| {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let mut command: Command = harness.command("--");
        command
            .args(&words)
            .env("COMPLETE", "bash")
            .env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
        command.env("_CLAP_IFS", "\n");
        async move {
            let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
            let answer = String::from_utf8(output.stdout).unwrap();
            // Flags are offered too, wherever they may stand.
            let is_wanted = |word: &&str| line.contains("--") || !word.starts_with('-');
            answer.lines().filter(is_wanted).map(str::to_owned).collect::<Vec<_>>()
        }
    };
    assert_eq!(complete("muster get node ").await, ["n2", "n10", "worker-1"]);
    assert_eq!(complete("muster describe pod p1").await, ["p10"]);
    assert_eq!(complete("muster get node/w").await, ["node/worker-1"]);
    assert_eq!(complete("muster cordon wor").await, ["worker-1"]);
    assert_eq!(complete("muster get pods -n other ").await, Vec::<String>::new());
    assert!(complete("muster get no").await.contains(&"nodes".to_owned()));
    assert!(complete("muster unc").await.contains(&"uncordon".to_owned()));
    assert!(complete("muster drain --ignore-d").await.contains(&"--ignore-daemonsets".to_owned()));
}

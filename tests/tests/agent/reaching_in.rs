//! `muster logs` and `muster exec` with a real store and a real agent: what a container writes, and commands in it.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use futures_util::stream;
use muster_grpc::agent_service_client::AgentServiceClient;
use muster_proto::identity::ServerRole;
use muster_proto::pb;
use muster_proto::pb::exec_request::Request as Input;
use muster_proto::pb::exec_response::Response as Said;
use muster_tests::agent_process::{AgentHost, AgentProcess, is_ready, is_running, node_where};
use muster_tests::api::Api;
use muster_tests::certificate_authority::Authority;
use muster_tests::fixtures::*;
use muster_tests::single_node::SingleNodeCluster;
use muster_tests::store_process::{StoreLaunch, command as muster_command};
use muster_tests::{TIMEOUT, eventually, in_time};
use tonic::transport::Channel;
use tonic::{Code, Status};

fn script(name: &str, script: &str) -> pb::Pod {
    pod(name).on("n1").spec(|spec| {
        spec.containers[0].command = ["sh", "-c", script].map(str::to_owned).to_vec();
    })
}

/// `muster` with these arguments, at the store of the cluster.
fn muster(cluster: &SingleNodeCluster, arguments: &[&str]) -> Command {
    let mut command = muster_command();
    command.arg(arguments[0]).arg("--store").arg(cluster.store.url()).args(&arguments[1..]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

async fn run(mut command: Command, input: &str) -> Output {
    let input = input.to_owned();
    let ran = tokio::task::spawn_blocking(move || {
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    });
    in_time("muster ends", ran).await.unwrap()
}

/// The standard output of a `muster` that succeeds.
async fn output(cluster: &SingleNodeCluster, arguments: &[&str]) -> String {
    let output = run(muster(cluster, arguments), "").await;
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A `muster` that goes on, with its output in a file.
struct Follower {
    child: Child,
    file: PathBuf,
}

impl Follower {
    fn start(cluster: &SingleNodeCluster, arguments: &[&str]) -> Follower {
        let file = cluster.host.file(&format!("followed-{}", arguments.join("-").replace('/', "_")));
        let mut command = muster(cluster, arguments);
        let child = command.stdout(File::create(&file).unwrap()).spawn().unwrap();
        Follower { child, file }
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.file).unwrap()
    }

    async fn shows(&self, text: &str) {
        eventually(TIMEOUT, &format!("{text:?} is followed"), || async {
            self.text().contains(text).then_some(())
        })
        .await;
    }

    async fn ends(mut self) -> String {
        eventually(TIMEOUT, "the follower ends", || {
            let ended = self.child.try_wait().unwrap();
            async move { ended }
        })
        .await;
        self.text()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn written(path: &Path) -> String {
    eventually(TIMEOUT, &format!("{} is written", path.display()), || async {
        fs::read_to_string(path).ok().filter(|text| text.ends_with('\n'))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn s200_logs_are_read_and_followed_through_rotation_and_restarts() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    agent.stop();
    let launch =
        cluster.launch().flag("container-log-max-size", "16Ki").flag("container-log-max-files", "40");
    let agent = launch.start();
    node_where(&cluster.api, "n1", "it is ready", is_ready).await;
    let gate = |name: &str| cluster.host.file(name).display().to_string();
    let body = format!(
        "if test -e {once}; then echo second; until test -e {more}; do sleep 0.05; done; \
         echo third; exec sleep 1000; fi; touch {once}; echo first\n\
         until test -e {begin}; do sleep 0.05; done\n\
         n=0; while test $n -lt 4000; do echo line $n of the first; n=$((n + 1)); done\n\
         until test -e {end}; do sleep 0.05; done; echo last; exit 3",
        once = gate("once"),
        begin = gate("begin"),
        end = gate("end"),
        more = gate("more"),
    );
    let created = cluster.api.create(script("web", &body)).await.unwrap();
    agent.container_pid("web").await;
    let follower = Follower::start(&cluster, &["logs", "-f", "web"]);
    follower.shows("first\n").await;
    fs::write(gate("begin"), "").unwrap();
    follower.shows("line 3999 of the first\n").await;

    // What was moved out of the log is still read, in order and without a gap.
    let folder = cluster.folder(&created);
    let rotated = || {
        let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("0.log.")).count()
    };
    eventually(TIMEOUT, "the log is rotated", || async { (rotated() > 0).then_some(()) }).await;
    let expected: String = std::iter::once("first\n".to_owned())
        .chain((0..4000).map(|n| format!("line {n} of the first\n")))
        .collect();
    assert_eq!(output(&cluster, &["logs", "web"]).await, expected);
    assert_eq!(follower.text(), expected);
    assert_eq!(
        output(&cluster, &["logs", "pod/web", "--tail=2"]).await,
        "line 3998 of the first\nline 3999 of the first\n"
    );
    assert_eq!(output(&cluster, &["logs", "web", "--since=1h", "-c", "main"]).await, expected);
    eventually(TIMEOUT, "nothing is that new", || async {
        output(&cluster, &["logs", "web", "--since=1s"]).await.is_empty().then_some(())
    })
    .await;
    let none = run(muster(&cluster, &["logs", "web", "-p"]), "").await;
    assert!(String::from_utf8_lossy(&none.stderr).contains("was not started before"), "{none:?}");

    // The container is started again, and the follower goes on with it.
    fs::write(gate("end"), "").unwrap();
    follower.shows("last\nsecond\n").await;
    assert_eq!(output(&cluster, &["logs", "web"]).await, "second\n");
    assert_eq!(output(&cluster, &["logs", "-p", "web", "--tail", "1"]).await, "last\n");

    // An agent that is replaced interrupts it for a moment only, and repeats nothing.
    agent.stop();
    let agent = cluster.launch().flag("container-log-max-size", "16Ki").start();
    agent.container_pid("web").await;
    fs::write(gate("more"), "").unwrap();
    follower.shows("third\n").await;
    cluster.api.delete::<pb::Pod>("default/web").await.unwrap();
    assert_eq!(follower.ends().await, format!("{expected}last\nsecond\nthird\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn s201_a_command_runs_as_the_container_does_and_its_exit_code_is_passed_on() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    let with_place = script("web", "exec sleep 1000").spec(|spec| {
        spec.containers[0].working_dir = "/usr".to_owned();
        spec.containers[0].env =
            vec![pb::EnvVar { name: "MODE".into(), value: "production".into(), value_from: None }];
    });
    cluster.api.create(with_place).await.unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", agent.container_pid("web").await)).unwrap();
    let own = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let shown =
        output(&cluster, &["exec", "web", "--", "sh", "-c", "pwd; echo $MODE; cat /proc/self/status"]).await;
    assert!(shown.starts_with("/usr\nproduction\n"), "{shown}");
    let shown = shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let shown: Vec<String> = shown.collect();
    for field in ["Uid:", "Gid:", "CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:"] {
        assert!(shown.contains(&own(field)), "{} in {shown:?}", own(field));
    }

    let failed =
        run(muster(&cluster, &["exec", "web", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]), "").await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let found = (failed.status.code(), text(&failed.stdout), text(&failed.stderr));
    assert_eq!(found, (Some(7), "out\n".to_owned(), "err\n".to_owned()));
    let killed = run(muster(&cluster, &["exec", "web", "--", "sh", "-c", "kill -9 $$"]), "").await;
    assert_eq!(killed.status.code(), Some(137));
    let missing = run(muster(&cluster, &["exec", "web", "--", "no-such-program"]), "").await;
    assert_eq!(missing.status.code(), Some(127), "{}", text(&missing.stderr));
    assert!(text(&missing.stderr).contains("no-such-program"), "{}", text(&missing.stderr));

    // Input of any size arrives, and its end; without -i there is none.
    let long = "a line of input\n".repeat(20_000);
    let echoed = run(muster(&cluster, &["exec", "-i", "web", "--", "cat"]), &long).await;
    assert!(echoed.status.success() && echoed.stdout == long.as_bytes());
    let without = run(muster(&cluster, &["exec", "web", "--", "cat"]), &long[..16]).await;
    assert!(without.status.success() && without.stdout.is_empty());

    let gone = run(muster(&cluster, &["exec", "nix", "--", "true"]), "").await;
    assert_eq!(gone.status.code(), Some(3));
    cluster.api.delete::<pb::Pod>("default/web").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn s202_a_command_and_all_that_it_started_end_with_the_call() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    cluster.api.create(script("web", "exec sleep 1000")).await.unwrap();
    agent.container_pid("web").await;
    // One that ignores TERM, and one that has left its session.
    let body = |file: &Path| {
        let file = file.display();
        format!("trap '' TERM; setsid sleep 1000 & echo $$ $! > {file}; wait; sleep 1000")
    };
    let pids = async |file: &Path| -> Vec<i32> {
        written(file).await.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    };
    let ended = async |pids: &[i32]| {
        eventually(TIMEOUT, "all have ended", || async {
            pids.iter().all(|pid| !is_running(*pid)).then_some(())
        })
        .await;
    };
    // The caller dies.
    let file = cluster.host.file("first");
    let mut caller = muster(&cluster, &["exec", "web", "--", "sh", "-c", &body(&file)]).spawn().unwrap();
    let started = pids(&file).await;
    assert!(started.iter().all(|pid| is_running(*pid)));
    caller.kill().unwrap();
    caller.wait().unwrap();
    ended(&started).await;

    // The container ends.
    let file = cluster.host.file("second");
    let caller = muster(&cluster, &["exec", "web", "--", "sh", "-c", &body(&file)]);
    let caller = tokio::spawn(run(caller, ""));
    let started = pids(&file).await;
    cluster.api.delete::<pb::Pod>("default/web").await.unwrap();
    ended(&started).await;
    let caller = in_time("the caller ends", caller).await.unwrap();
    // It was killed with the container, or the caller learns that the container has ended: whichever is seen first.
    let has_ended = String::from_utf8_lossy(&caller.stderr).contains("has ended");
    assert!(has_ended || caller.status.code() == Some(137), "{caller:?}");

    // The agent dies.
    cluster.api.create(script("other", "exec sleep 1000")).await.unwrap();
    agent.container_pid("other").await;
    let file = cluster.host.file("third");
    let caller = muster(&cluster, &["exec", "other", "--", "sh", "-c", &body(&file)]);
    let caller = tokio::spawn(run(caller, ""));
    let started = pids(&file).await;
    agent.kill();
    ended(&started).await;
    let caller = in_time("the caller ends", caller).await.unwrap();
    assert_eq!(caller.status.code(), Some(6), "{caller:?}");
}

/// Runs a command in a terminal of the container and returns what it wrote, and its exit code. The inputs are sent once it
/// has written the text.
async fn in_terminal(
    agent: &AgentProcess,
    command: &[&str],
    text: &str,
    inputs: Vec<Input>,
) -> (String, i32) {
    let start = pb::ExecStart {
        namespace: "default".to_owned(),
        pod: "web".to_owned(),
        command: command.iter().map(|&word| word.to_owned()).collect(),
        stdin: true,
        tty: true,
        terminal_size: Some(pb::TerminalSize { columns: 101, rows: 37 }),
        ..Default::default()
    };
    let message = |request| pb::ExecRequest { request: Some(request) };
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    sender.send(message(Input::Start(start))).unwrap();
    let requests = stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)));
    let mut stream = agent.service().exec(requests).await.unwrap().into_inner();
    let (mut shown, mut code, mut inputs) = (Vec::new(), None, Some(inputs));
    while let Some(next) = in_time("the command says something", stream.message()).await.unwrap() {
        match next.response.unwrap() {
            Said::Stdout(bytes) => shown.extend(bytes),
            Said::Exit(exit) => code = Some(exit.code),
            Said::Started(_) => {}
            Said::Stderr(bytes) => panic!("a terminal has one stream: {bytes:?}"),
        }
        if String::from_utf8_lossy(&shown).contains(text) {
            inputs.take().into_iter().flatten().for_each(|input| sender.send(message(input)).unwrap());
        }
    }
    (String::from_utf8(shown).unwrap(), code.expect("the exit code is the last message"))
}

#[tokio::test(flavor = "multi_thread")]
async fn s203_a_command_can_have_a_terminal_with_the_callers_size() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    cluster.api.create(script("web", "exec sleep 1000")).await.unwrap();
    agent.container_pid("web").await;
    let (shown, code) =
        in_terminal(&agent, &["sh", "-c", "stty size; tty; echo $TERM; exit 4"], "", vec![]).await;
    assert!(shown.starts_with("37 101\r\n/dev/pts/") && shown.ends_with("\r\nxterm\r\n"), "{shown:?}");
    assert_eq!(code, 4);

    // A new size, lines, and an end of input, as keys would give them.
    let inputs = vec![
        Input::Resize(pb::TerminalSize { columns: 60, rows: 20 }),
        Input::Stdin(b"stty size; echo a-$((2 + 3))\n".to_vec()),
        Input::StdinEnd(pb::ExecInputEnd {}),
    ];
    let (shown, code) = in_terminal(&agent, &["sh"], "", inputs).await;
    assert!(shown.contains("20 60\r\n") && shown.contains("a-5\r\n"), "{shown:?}");
    assert_eq!(code, 0);

    // Ctrl-C interrupts the command in the foreground.
    let interrupt = vec![Input::Stdin(b"\x03".to_vec())];
    // A shell that is just about to start another program may miss it: one program shows where it is, and waits for input.
    let waiting = ["cat", "/proc/self/comm", "-"];
    let (_, code) = in_terminal(&agent, &waiting, "cat", interrupt).await;
    assert_eq!(code, 130);
}

/// A store and an agent with mutual TLS.
struct Secure {
    authority: Authority,
    agent: AgentProcess,
    api: Api,
    _store: muster_tests::store_process::StoreProcess,
    _host: AgentHost,
    _data: tempfile::TempDir,
}

impl Secure {
    async fn start(agent_has_tls: bool) -> Secure {
        let (authority, data, host) = (Authority::new(), tempfile::tempdir().unwrap(), AgentHost::new());
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        let [cert, key] = authority.issue("store", "muster:stores").map(text);
        let ca = text(authority.own());
        let store = StoreLaunch::on(data.path()).flag("--tls-cert", &cert).flag("--tls-key", &key);
        let store = store.flag("--tls-client-ca", &ca).start();
        let url = format!("https://localhost:{}", store.grpc_address().port());
        let tls = authority.client("eva", "muster:admins");
        let api = Api::of(tls.target(&url, ServerRole::Store).unwrap().connect_lazy());
        let own = authority.credentials_of_host("node:n1", "muster:nodes", "localhost");
        let file = |name: &str| text(own.join(name));
        let launch = host.agent("n1", &url);
        let launch = if agent_has_tls {
            let launch = launch.flag("tls-cert", &file("tls.crt")).flag("tls-key", &file("tls.key"));
            launch.flag("tls-client-ca", &ca)
        } else {
            launch.flag("credentials", own.to_str().unwrap())
        };
        let agent = launch.start();
        node_where(&api, "n1", "it is ready", is_ready).await;
        api.create(script("web", "echo hello; exec sleep 1000")).await.unwrap();
        Secure { authority, agent, api, _store: store, _host: host, _data: data }
    }

    fn service(&self, common_name: &str, organization: &str) -> AgentServiceClient<Channel> {
        self.agent.service_as(&self.authority.client(common_name, organization))
    }
}

async fn read_log(mut service: AgentServiceClient<Channel>) -> Result<String, Status> {
    let request = pb::ReadLogRequest { namespace: "default".into(), pod: "web".into(), ..Default::default() };
    let mut parts = in_time("an answer", service.read_log(request)).await?.into_inner();
    let mut text = Vec::new();
    while let Some(part) = in_time("a part", parts.message()).await? {
        text.extend(part.data);
    }
    Ok(String::from_utf8(text).unwrap())
}

async fn exec(mut service: AgentServiceClient<Channel>, node: &str) -> Result<i32, Status> {
    let start = pb::ExecStart {
        namespace: "default".into(),
        pod: "web".into(),
        node: node.into(),
        command: vec!["true".into()],
        ..Default::default()
    };
    let request = pb::ExecRequest { request: Some(Input::Start(start)) };
    let mut answers = in_time("an answer", service.exec(stream::iter([request]))).await?.into_inner();
    let mut code = None;
    while let Some(answer) = in_time("an answer", answers.message()).await? {
        if let Some(Said::Exit(exit)) = answer.response {
            code = Some(exit.code);
        }
    }
    Ok(code.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn s204_viewers_read_logs_only_administrators_and_the_node_run_commands_and_nobody_else_either() {
    let secure = Secure::start(true).await;
    let written = eventually(TIMEOUT, "the pod has written", || async {
        read_log(secure.service("eva", "muster:admins")).await.ok().filter(|text| !text.is_empty())
    });
    assert_eq!(written.await, "hello\n");
    let denied = Err(Code::PermissionDenied);
    for (common_name, organization, may_read, may_exec) in [
        ("eva", "muster:admins", Ok("hello\n".to_owned()), Ok(0)),
        ("vic", "muster:viewers", Ok("hello\n".to_owned()), Err(Code::PermissionDenied)),
        ("node:n1", "muster:nodes", Ok("hello\n".to_owned()), Ok(0)),
        ("node:n2", "muster:nodes", denied.clone(), Err(Code::PermissionDenied)),
        ("controller", "muster:controllers", denied.clone(), Err(Code::PermissionDenied)),
        ("scheduler", "muster:schedulers", denied.clone(), Err(Code::PermissionDenied)),
        ("eve", "strangers", denied, Err(Code::PermissionDenied)),
    ] {
        let read = read_log(secure.service(common_name, organization)).await.map_err(|status| status.code());
        assert_eq!(read, may_read, "{common_name} reads");
        let ran = exec(secure.service(common_name, organization), "").await.map_err(|status| status.code());
        assert_eq!(ran, may_exec, "{common_name} runs a command");
    }
    let misled = exec(secure.service("eva", "muster:admins"), "n2").await.unwrap_err();
    assert!(misled.message().contains("this is the agent of node n1, not of n2"), "{misled}");
    secure.api.delete::<pb::Pod>("default/web").await.unwrap();

    // Without TLS it could not know who calls, though pods of a fleet with TLS run here.
    let open = Secure::start(false).await;
    open.agent.container_pid("web").await;
    let refused = exec(open.agent.service(), "").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("--tls-cert"), "{refused}");
    assert_eq!(read_log(open.agent.service()).await.unwrap_err().code(), Code::FailedPrecondition);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_does_not_read_costs_no_memory_and_stops_no_container() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    cluster.api.create(script("web", "exec yes something to read")).await.unwrap();
    agent.container_pid("web").await;
    let mut readers: Vec<Child> =
        (0..8).map(|_| muster(&cluster, &["exec", "web", "--", "yes", "x"]).spawn().unwrap()).collect();
    for reader in &mut readers {
        // Each has begun, and from then on its output is not read.
        let mut first = [0; 1];
        reader.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    }
    let resident = || {
        let status = fs::read_to_string(format!("/proc/{}/status", agent.pid().as_raw_nonzero())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap()
    };
    let log = muster(&cluster, &["logs", "-f", "web"]).spawn().unwrap();
    readers.push(log);
    // Whatever is kept for a slow reader is bounded: the agent's memory does not follow what is written.
    let before = cluster.host.file("state");
    let grown = |bytes: u64| {
        let mut total = 0;
        let found = fs::read_dir(before.join("runtime/pods")).unwrap().flatten();
        for entry in found.flat_map(|pod| fs::read_dir(pod.path().join("main")).unwrap().flatten()) {
            total += entry.metadata().map_or(0, |found| found.len());
        }
        total > bytes
    };
    eventually(TIMEOUT, "much is written", || async { grown(20 << 20).then_some(()) }).await;
    let used = resident();
    assert!(used < 100 << 10, "{used} KiB");
    for mut reader in readers {
        reader.kill().unwrap();
        reader.wait().unwrap();
    }
    cluster.api.delete::<pb::Pod>("default/web").await.unwrap();
}

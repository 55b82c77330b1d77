//! The real Prometheus with the config, rules and dashboards of `deploy/`, scraping the real binaries: every query
//! finds data.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]
#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use muster_proto::pb;
use muster_tests::agent_process::{AgentHost, node_where};
use muster_tests::controller_process::ControllerProcess;
use muster_tests::fixtures;
use muster_tests::http::{get, percent_encoded};
use muster_tests::store_process::{StoreLaunch, free_port};
use muster_tests::tools::{repository, tool};
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A Prometheus with a copy of our config. It is killed when it is dropped.
struct Prometheus {
    child: Child,
    address: SocketAddr,
}

impl Prometheus {
    /// `targets` replaces the host names of docker-compose.
    fn start(directory: &Path, targets: &BTreeMap<&str, SocketAddr>) -> Prometheus {
        let own = repository().join("deploy/prometheus");
        let config = fs::read_to_string(own.join("prometheus.yml")).unwrap();
        let static_of = |target: &SocketAddr| format!("static_configs: [{{targets: [\"{target}\"]}}]");
        let (before, after) = config.split_once("    dns_sd_configs:\n").expect("agents are found by name");
        assert!(
            after.trim_end().lines().all(|line| line.starts_with("      ")),
            "the agents are the last job"
        );
        let config = format!("{before}    {}\n", static_of(&targets["agent"]));
        let config = ["store:7401", "controller:7501"].iter().fold(config, |config, name| {
            assert!(config.contains(name), "{name} is scraped");
            config.replace(name, &targets[name.split(':').next().unwrap()].to_string())
        });
        // Rates need several scrapes, and their rules several evaluations.
        let config = config.replace("interval: 15s", "interval: 1s");
        fs::write(directory.join("prometheus.yml"), config).unwrap();
        fs::create_dir(directory.join("rules")).unwrap();
        for rules in ["recording.yml", "alerts.yml"] {
            fs::copy(own.join("rules").join(rules), directory.join("rules").join(rules)).unwrap();
        }
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let log = fs::File::create(directory.join("log")).unwrap();
        let child = Command::new(tool("prometheus"))
            .arg(format!("--config.file={}", directory.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", directory.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--enable-feature=exemplar-storage")
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Prometheus { child, address }
    }

    fn ask(&self, path: &str) -> Option<Value> {
        serde_json::from_str(&get(self.address, &format!("/api/v1/{path}"))?).ok()
    }

    /// The number of results of a query, or its error.
    fn query(&self, query: &str) -> Result<usize, String> {
        let answer = self.ask(&format!("query?query={}", percent_encoded(query)));
        let answer = answer.ok_or("no answer")?;
        match answer["data"]["result"].as_array() {
            Some(found) => Ok(found.len()),
            None => Err(answer["error"].to_string()),
        }
    }

    /// Waits until a query has one result.
    fn wait_for(&self, query: &str) {
        let deadline = Instant::now() + TIMEOUT;
        while self.query(query) != Ok(1) {
            assert!(Instant::now() < deadline, "{query} finds {:?}", self.query(query));
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The queries of all dashboard panels, with Grafana's variables replaced.
fn panels() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let dashboards = fs::read_dir(repository().join("deploy/grafana/dashboards")).unwrap();
    for file in dashboards.map(|entry| entry.unwrap().path()) {
        let board: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        let title = board["title"].as_str().unwrap();
        for panel in board["panels"].as_array().unwrap() {
            let place = format!("{title} / {}", panel["title"].as_str().unwrap());
            for target in panel["targets"].as_array().into_iter().flatten() {
                let query = target["expr"].as_str().unwrap();
                let query = query.replace("$__rate_interval", "1m").replace("$zone", ".*");
                found.push((place.clone(), query));
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn every_rule_loads_and_every_panel_has_data() {
    let directory = tempfile::tempdir().unwrap();
    // Traces are recorded, but no collector receives them.
    let traced =
        StoreLaunch::on(&directory.path().join("store")).flag("--otlp-endpoint", "http://127.0.0.1:9");
    let store = traced.flag("--trace-sample-ratio", "1").start();
    let controller = ControllerProcess::start(&store.url(), &[]);
    let host = AgentHost::new();
    let agent = host.agent("machine", &store.url()).start();
    node_where(&store.api(), "machine", "is there", |_| true).await;
    store.api().create(fixtures::pod("waiting")).await.unwrap();
    // A constant load: without calls there are no percentiles.
    let asking = tokio::spawn({
        let api = store.api();
        async move {
            loop {
                api.get::<pb::Node>("machine").await.unwrap();
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    });

    let targets = BTreeMap::from([
        ("store", store.http_address()),
        ("controller", controller.http_address()),
        ("agent", agent.http_address()),
    ]);
    let host = tempfile::tempdir().unwrap();
    let prometheus = Prometheus::start(host.path(), &targets);
    let prometheus = tokio::task::block_in_place(|| {
        for job in targets.keys() {
            prometheus.wait_for(&format!("up{{job=\"muster-{job}\"}} == 1"));
        }
        // A rule over a rule over rates has its data last.
        prometheus.wait_for("sum(service_method:muster_call_seconds:p99_5m > 0) > 0");
        prometheus.wait_for("sum(job:muster_store_watch_lag_seconds:p99_5m > 0) > 0");
        prometheus
    });

    let rules = prometheus.ask("rules").unwrap();
    let groups = rules["data"]["groups"].as_array().unwrap();
    let rules: Vec<&Value> = groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
    assert!(rules.len() >= 20, "{} rules", rules.len());
    for rule in rules {
        let health = rule["health"].as_str();
        assert!(matches!(health, Some("ok" | "unknown")), "{rule}");
        // No alert may fire on a healthy fleet.
        assert_ne!(rule["state"], "firing", "{rule}");
    }
    tokio::task::block_in_place(|| {
        // A rate needs two scrapes, and some series start with the first pass over the zones.
        let (mut empty, deadline) = (panels(), Instant::now() + TIMEOUT);
        while !empty.is_empty() {
            empty.retain(|(_, query)| !matches!(prometheus.query(query), Ok(1..)));
            assert!(Instant::now() < deadline, "these panels are empty: {empty:#?}");
        }
    });
    assert!(!asking.is_finished(), "the store answers");
    asking.abort();

    let query = percent_encoded("muster_store_commit_seconds_bucket");
    let exemplars = prometheus.ask(&format!("query_exemplars?query={query}&start=0&end=9999999999")).unwrap();
    let first = &exemplars["data"][0]["exemplars"][0]["labels"]["trace_id"];
    assert_eq!(first.as_str().map(str::len), Some(32), "{exemplars}");
}

#[tokio::test(flavor = "multi_thread")]
async fn promtool_finds_nothing_wrong_with_the_metrics_of_any_part() {
    let directory = tempfile::tempdir().unwrap();
    let store = StoreLaunch::on(&directory.path().join("store")).start();
    let controller = ControllerProcess::start(&store.url(), &[]);
    let host = AgentHost::new();
    let agent = host.agent("machine", &store.url()).start();
    node_where(&store.api(), "machine", "is there", |_| true).await;
    for (part, address) in [
        ("muster-store", store.http_address()),
        ("muster-controller", controller.http_address()),
        ("muster-agent", agent.http_address()),
    ] {
        let metrics = get(address, "/metrics").expect("the HTTP port answers");
        let build = format!("muster_build_info{{component=\"{part}\",");
        for name in [build.as_str(), "process_resident_memory_bytes ", "process_cpu_seconds_total "] {
            assert!(metrics.contains(name), "no {name} in:\n{metrics}");
        }
        let file = directory.path().join(part);
        fs::write(&file, &metrics).unwrap();
        let mut check = Command::new(tool("promtool"));
        check.args(["check", "metrics"]).stdin(fs::File::open(&file).unwrap());
        let checked = check.output().unwrap();
        let complaints = String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success() && complaints.is_empty(), "{part}: {complaints}\n{metrics}");
    }
}

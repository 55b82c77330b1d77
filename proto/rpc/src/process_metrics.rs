//! What every process says about itself: its version, and what it takes of the machine, under the names that Prometheus'
//! own clients use.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

/// Registers `muster_build_info` and `process_*`. `component` is the name of the binary, such as `muster-store`; the
/// parts of `muster up` share one process and differ in that.
pub fn register(registry: &mut Registry, component: &'static str) {
    registry.register_collector(Box::new(ProcessCollector { component }));
}

#[derive(Debug)]
struct ProcessCollector {
    component: &'static str,
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "1, with the version that runs";
        let mut family = encoder.encode_descriptor("muster_build_info", help, None, MetricType::Gauge)?;
        let labels = [("component", self.component), ("version", env!("CARGO_PKG_VERSION"))];
        ConstGauge::new(1).encode(family.encode_family(&labels)?)?;
        // A machine without /proc has none of the rest.
        let Some(usage) = Usage::read() else { return Ok(()) };
        let cpu = ConstCounter::new(usage.cpu_seconds);
        let help = "User and system CPU time so far, in seconds";
        cpu.encode(encoder.encode_descriptor("process_cpu_seconds", help, None, cpu.metric_type())?)?;
        for (name, help, value) in [
            (
                "process_start_time_seconds",
                "When it started, in seconds since 1970",
                usage.start_time_seconds,
            ),
            ("process_virtual_memory_bytes", "Its virtual memory", usage.virtual_memory_bytes),
            ("process_resident_memory_bytes", "Its resident memory", usage.resident_memory_bytes),
            ("process_threads", "Its threads", usage.threads),
            ("process_open_fds", "Its open file descriptors", usage.open_fds),
            ("process_max_fds", "How many file descriptors it may have", usage.max_fds),
        ] {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Usage {
    cpu_seconds: f64,
    start_time_seconds: f64,
    virtual_memory_bytes: f64,
    resident_memory_bytes: f64,
    threads: f64,
    open_fds: f64,
    max_fds: f64,
}

impl Usage {
    fn read() -> Option<Usage> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The name of the program, in parentheses, may contain spaces and parentheses.
        let fields: Vec<f64> = stat
            .rsplit_once(')')?
            .1
            .split_whitespace()
            .map(|field| field.parse().unwrap_or_default())
            .collect();
        // By its number in proc_pid_stat(5), where the first field after the name is 3.
        let field = |number: usize| fields.get(number - 3).copied();
        let ticks = clock_ticks_per_second() as f64;
        let boot = fs::read_to_string("/proc/stat").ok()?;
        let boot: f64 = boot.lines().find_map(|line| line.strip_prefix("btime ")?.parse().ok())?;
        Some(Usage {
            cpu_seconds: (field(14)? + field(15)?) / ticks,
            start_time_seconds: boot + field(22)? / ticks,
            virtual_memory_bytes: field(23)?,
            resident_memory_bytes: field(24)? * page_size() as f64,
            threads: field(20)?,
            // Not the one that reads the directory.
            open_fds: fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as f64,
            max_fds: getrlimit(Resource::Nofile).current.map_or(f64::INFINITY, |limit| limit as f64),
        })
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn a_process_says_its_version_and_what_it_takes() {
        let mut registry = Registry::default();
        register(&mut registry, "muster-test");
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let build = format!(
            "muster_build_info{{component=\"muster-test\",version=\"{}\"}} 1",
            env!("CARGO_PKG_VERSION")
        );
        assert!(text.contains(&build), "{text}");
        let usage = Usage::read().unwrap();
        assert!(
            usage.resident_memory_bytes > 1e5 && usage.virtual_memory_bytes > usage.resident_memory_bytes
        );
        assert!(usage.threads >= 1.0 && usage.open_fds >= 3.0 && usage.max_fds > usage.open_fds, "{usage:?}");
        let year_2020 = 1_577_836_800.0;
        assert!(usage.start_time_seconds > year_2020, "{usage:?}");
        for name in ["process_cpu_seconds_total", "process_start_time_seconds", "process_max_fds"] {
            assert!(text.contains(&format!("\n{name} ")), "{name} in {text}");
        }
    }
}

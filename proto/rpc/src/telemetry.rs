//! Logs to stderr and, if a collector is configured, spans over OTLP.
//!
//! `trace` creates the spans; here they are exported, in the background with a bounded queue: a collector that does not
//! answer loses spans and delays no call.

use std::io::{self, IsTerminal};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tracing::Subscriber;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{DefaultFields, Format, JsonFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use self::span_logs::{KeepLines, Traced};
use crate::trace::{self, Part};

mod span_logs;

/// The default share of traces that are recorded.
const SAMPLE_RATIO: f64 = 0.01;
/// The timeout of an export; its spans are lost then.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a stopping process waits for the export of its last spans.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The flags of logs and traces, the same in every process.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[command(next_help_heading = "Telemetry")]
pub struct TelemetryFlags {
    /// How log lines are written
    #[arg(long, env = "MUSTER_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// What is logged: a level, or targets with levels such as `info,muster_store=debug`
    #[arg(long, env = "MUSTER_LOG_LEVEL", default_value = "info")]
    pub log_level: String,

    /// Collector that spans are sent to, OTLP over gRPC; OTEL_EXPORTER_OTLP_ENDPOINT is read, too
    #[arg(long, env = "MUSTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,

    /// Share of new traces that are recorded, 0 to 1; a caller's decision takes precedence; OTEL_TRACES_SAMPLER and its
    /// _ARG are read, too [default: 0.01]
    #[arg(long, env = "MUSTER_TRACE_SAMPLE_RATIO", value_parser = parse_ratio)]
    pub trace_sample_ratio: Option<f64>,
}

impl Default for TelemetryFlags {
    fn default() -> TelemetryFlags {
        TelemetryFlags {
            log_format: LogFormat::Text,
            log_level: "info".to_owned(),
            otlp_endpoint: None,
            trace_sample_ratio: None,
        }
    }
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

fn parse_ratio(text: &str) -> Result<f64, String> {
    let ratio: f64 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    if (0.0..=1.0).contains(&ratio) { Ok(ratio) } else { Err(format!("`{text}` is not between 0 and 1")) }
}

/// Why telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("--log-level: {0}")]
    LogLevel(#[from] tracing_subscriber::filter::ParseError),
    #[error("--otlp-endpoint: {0}")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
    #[error("telemetry with a collector has to be set up inside the tokio runtime")]
    NoRuntime,
}

/// The running telemetry; shut it down last, or the last spans are lost.
#[must_use = "spans still queued are lost unless the guard is shut down"]
#[derive(Debug)]
pub struct TelemetryGuard {
    /// One for the process and one for each of its parts; none without a collector.
    providers: Vec<SdkTracerProvider>,
}

impl TelemetryGuard {
    /// Whether spans are sent to a collector.
    pub fn exports(&self) -> bool {
        !self.providers.is_empty()
    }

    /// Sends what is still queued, within a few seconds, whether or not the collector answers.
    pub async fn shutdown(self) {
        // The flush blocks while the exporter needs the runtime's threads, so each runs on a blocking thread.
        let flush = |provider: SdkTracerProvider| {
            tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(FLUSH_TIMEOUT))
        };
        let flushing: Vec<_> = self.providers.into_iter().map(flush).collect();
        for flushed in flushing {
            match flushed.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "the last spans did not reach the collector"),
                Err(error) => tracing::warn!(%error, "the flush of the last spans failed"),
            }
        }
    }
}

/// Sets up logs and traces for this process. If a subscriber is already installed, nothing happens, so that tests can
/// start several services in one process.
///
/// # Errors
/// When the log level or the collector's URL is invalid.
pub fn init(service_name: &str, flags: &TelemetryFlags) -> Result<TelemetryGuard, TelemetryError> {
    init_with_parts(service_name, &[], flags)
}

/// The same for a process in which several parts run, whose spans are of services of their own.
///
/// # Errors
/// When the log level or the collector's URL is invalid.
pub fn init_with_parts(
    service_name: &str,
    parts: &[Part],
    flags: &TelemetryFlags,
) -> Result<TelemetryGuard, TelemetryError> {
    let log_filter = EnvFilter::try_new(&flags.log_level)?;
    if tracing::dispatcher::has_been_set() {
        return Ok(TelemetryGuard { providers: Vec::new() });
    }
    let endpoint = flags.otlp_endpoint.clone().or_else(standard_endpoint);
    let ratio = flags.trace_sample_ratio.or_else(standard_ratio).unwrap_or(SAMPLE_RATIO);
    let mut providers = Vec::new();
    if let Some(url) = endpoint {
        providers.push(provider(resource(service_name, standard_service_name()), &url, ratio)?);
        for Part(part) in parts {
            providers.push(provider(resource(part, Some((*part).to_owned())), &url, ratio)?);
        }
    }
    let lines = log_lines(flags.log_format, io::stderr, io::stderr().is_terminal());
    let kept = (!providers.is_empty()).then_some(KeepLines);
    let installed =
        tracing_subscriber::registry().with(lines.and_then(kept).with_filter(log_filter)).try_init();
    // Another thread may have installed one at the same time; that one stays.
    if installed.is_err() || !install_tracers(&providers, parts) {
        providers.clear();
    }
    Ok(TelemetryGuard { providers })
}

/// Installs the tracers of the providers, the first of which is that of the process; false if there are none or others.
fn install_tracers(providers: &[SdkTracerProvider], parts: &[Part]) -> bool {
    let mut tracers = providers.iter().map(|provider| provider.tracer("muster"));
    let Some(own) = tracers.next() else { return false };
    trace::install_with_parts(own, parts.iter().copied().zip(tracers).collect())
}

/// The layer that writes the log.
fn log_lines<S, W>(format: LogFormat, writer: W, is_coloured: bool) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let lines = fmt::layer().with_writer(writer).with_ansi(is_coloured);
    match format {
        LogFormat::Text => {
            let inner = Format::default().with_ansi(is_coloured);
            lines.fmt_fields(DefaultFields::new()).event_format(Traced { inner, format }).boxed()
        }
        LogFormat::Json => {
            let inner = Format::default().json().flatten_event(true);
            lines.fmt_fields(JsonFields::new()).event_format(Traced { inner, format }).boxed()
        }
    }
}

/// The collector from OpenTelemetry's variables.
fn standard_endpoint() -> Option<String> {
    ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|url| !url.is_empty()))
}

/// The share of traces to record from OpenTelemetry's variables. With every sampler the caller's decision takes
/// precedence.
fn standard_ratio() -> Option<f64> {
    let argument = || std::env::var("OTEL_TRACES_SAMPLER_ARG").ok().and_then(|text| parse_ratio(&text).ok());
    match std::env::var("OTEL_TRACES_SAMPLER").ok()?.trim_start_matches("parentbased_") {
        "always_on" => Some(1.0),
        "always_off" => Some(0.0),
        "traceidratio" => Some(argument().unwrap_or(1.0)),
        _ => None,
    }
}

/// The name of the process's service from OpenTelemetry's variable.
fn standard_service_name() -> Option<String> {
    std::env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty())
}

fn provider(resource: Resource, endpoint: &str, ratio: f64) -> Result<SdkTracerProvider, TelemetryError> {
    // Without a runtime the exporter's connection would panic instead of failing.
    tokio::runtime::Handle::try_current().map_err(|_| TelemetryError::NoRuntime)?;
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .with_timeout(EXPORT_TIMEOUT)
        .build()?;
    Ok(SdkTracerProvider::builder()
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio))))
        .with_resource(resource)
        .with_batch_exporter(exporter)
        .build())
}

/// The resource attributes of the spans. The operator's OTEL_ variables take precedence over ours, except over a name that
/// is given here.
fn resource(service_name: &str, name: Option<String>) -> Resource {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let host = host.as_deref().map_or("localhost", str::trim);
    let builder = Resource::builder_empty()
        .with_attributes([
            KeyValue::new("service.name", service_name.to_owned()),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", format!("{host}:{}", std::process::id())),
            KeyValue::new("host.name", host.to_owned()),
        ])
        .with_detectors(&[Box::new(TelemetryResourceDetector), Box::new(EnvResourceDetector::new())]);
    match name {
        Some(name) => builder.with_service_name(name).build(),
        None => builder.build(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        telemetry: TelemetryFlags,
    }

    #[test]
    fn the_default_flags_are_the_default_settings() {
        assert_eq!(Flags::parse_from(["muster"]).telemetry, TelemetryFlags::default());
    }

    #[test]
    fn a_sample_ratio_is_between_0_and_1() {
        for (text, expected) in [("0", Some(0.0)), ("0.5", Some(0.5)), ("1", Some(1.0))] {
            assert_eq!(parse_ratio(text).ok(), expected, "{text}");
        }
        for text in ["-0.1", "1.1", "NaN", "half", ""] {
            assert!(parse_ratio(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_invalid_flag_is_named() {
        let flags = TelemetryFlags { log_level: "muster=loud".to_owned(), ..TelemetryFlags::default() };
        assert!(init("muster-test", &flags).unwrap_err().to_string().starts_with("--log-level"));
    }

    #[tokio::test]
    async fn a_collector_that_does_not_answer_delays_nothing() {
        use opentelemetry::trace::Tracer;

        let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", unused.local_addr().unwrap());
        drop(unused);
        let provider = provider(resource("muster-test", None), &endpoint, 1.0).unwrap();
        let tracer = provider.tracer("muster");
        // More than the queue holds: what does not fit is dropped, not waited for.
        for _ in 0..5_000 {
            drop(tracer.start("call"));
        }
        let guard = TelemetryGuard { providers: vec![provider] };
        let patience = 2 * FLUSH_TIMEOUT;
        tokio::time::timeout(patience, guard.shutdown()).await.expect("the stop is bounded");
    }

    #[test]
    fn a_collector_needs_a_runtime_and_says_so() {
        let error = provider(resource("muster-test", None), "http://127.0.0.1:1", 1.0).unwrap_err();
        assert!(matches!(error, TelemetryError::NoRuntime), "{error}");
    }
}

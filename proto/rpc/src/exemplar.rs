//! Latency histograms with exemplars: each bucket has the id of a trace, so that a slow call can be found.

use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::histogram::exponential_buckets;

/// The trace that an observation belongs to, as a label.
pub type TraceLabel = [(&'static str, String); 1];

/// Latencies in seconds, with the trace of the newest observation in each bucket.
pub type Latency = HistogramWithExemplars<TraceLabel>;

/// An empty histogram; buckets from 0.1 ms to 13 s, doubling.
pub fn latency() -> Latency {
    HistogramWithExemplars::new(exponential_buckets(0.000_1, 2.0, 18))
}

/// The trace that a W3C `traceparent` belongs to; `None` for an invalid text.
pub fn trace_of(traceparent: &str) -> Option<TraceLabel> {
    let trace = traceparent.split('-').nth(1).filter(|trace| trace.len() == 32)?;
    Some([("trace_id", trace.to_owned())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::{Registry, Unit};

    #[test]
    fn a_bucket_shows_the_trace_of_its_newest_observation() {
        let (latency, mut registry) = (latency(), Registry::default());
        registry.register_with_unit("wait", "Time waited", Unit::Seconds, latency.clone());
        let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        latency.observe(0.000_15, trace_of(traceparent), None);
        latency.observe(0.5, trace_of(""), None);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let shown =
            "wait_seconds_bucket{le=\"0.0002\"} 1 # {trace_id=\"0af7651916cd43dd8448eb211c80319c\"} 0.00015";
        assert!(text.lines().any(|line| line == shown), "{text}");
        assert_eq!(text.matches("trace_id").count(), 1, "{text}");
    }
}

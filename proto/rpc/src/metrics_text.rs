//! The two text formats of `/metrics`: OpenMetrics, which has exemplars, and the older plain format of Prometheus, which
//! every tool reads. The registry writes the first; [`plain`] makes the second from it.

/// The media type of OpenMetrics.
pub(crate) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The media type of the plain format.
pub(crate) const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whether a request with this `Accept` header prefers OpenMetrics to plain text. One that names neither gets plain
/// text.
pub(crate) fn prefers_open_metrics(accept: &str) -> bool {
    let quality = |media_type: &str| {
        let ranges = accept.split(',').map(str::trim);
        let found =
            ranges.filter(|range| range.split(';').next().is_some_and(|name| name.trim() == media_type));
        let quality = |range: &str| {
            let given = range.split(';').find_map(|part| part.trim().strip_prefix("q=")?.parse::<f32>().ok());
            given.unwrap_or(1.0)
        };
        found.map(quality).fold(0.0, f32::max)
    };
    let open_metrics = quality("application/openmetrics-text");
    open_metrics > 0.0 && open_metrics >= quality("text/plain")
}

/// OpenMetrics in the plain format.
///
/// There a counter's metadata has the name of its sample, which ends with `_total`, some types have other names, and
/// there are neither units nor exemplars nor a mark of the end.
pub(crate) fn plain(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help: Option<(&str, &str)> = None;
    for line in open_metrics.lines() {
        if let Some((name, about)) = metadata(line, "# HELP ") {
            help = Some((name, about));
        } else if let Some((name, kind)) = metadata(line, "# TYPE ") {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "stateset" => ("", "gauge"),
                "unknown" | "gaugehistogram" => ("", "untyped"),
                other => ("", other),
            };
            if let Some((_, about)) = help.take().filter(|(of, _)| *of == name) {
                text.push_str(&format!("# HELP {name}{suffix} {about}\n"));
            }
            text.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
        } else if !line.starts_with('#') {
            text.push_str(without_exemplar(line));
            text.push('\n');
        }
    }
    text
}

fn metadata<'a>(line: &'a str, kind: &str) -> Option<(&'a str, &'a str)> {
    line.strip_prefix(kind)?.split_once(' ')
}

/// A sample without the exemplar behind its value. A label's value may contain anything, so the end of the labels is
/// searched for first.
fn without_exemplar(sample: &str) -> &str {
    let labels_end = sample.find(['{', ' ']).filter(|at| sample[*at..].starts_with('{')).map_or(0, |start| {
        let (mut quoted, mut escaped) = (false, false);
        let end = sample[start..].find(|c: char| {
            let was_escaped = escaped;
            escaped = quoted && c == '\\' && !was_escaped;
            quoted ^= c == '"' && !was_escaped;
            c == '}' && !quoted
        });
        end.map_or(0, |end| start + end)
    });
    match sample[labels_end..].find(" # ") {
        Some(exemplar) => &sample[..labels_end + exemplar],
        None => sample,
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::exemplar::HistogramWithExemplars;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::registry::{Registry, Unit};

    use super::*;

    #[test]
    fn the_plain_format_has_the_names_of_samples_and_no_exemplars() {
        let mut registry = Registry::default();
        let calls = Family::<[(&str, String); 1], Counter>::default();
        calls.get_or_create(&[("zone", "a } \"# {\\".to_owned())]).inc();
        registry.register("calls", "Calls so far", calls);
        let latency = HistogramWithExemplars::<[(&str, &str); 1]>::new([0.5].into_iter());
        latency.observe(0.2, Some([("trace_id", "abc")]), None);
        registry.register_with_unit("latency", "How long", Unit::Seconds, latency);
        registry.register("size", "How many", Gauge::<i64>::default());
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        assert!(text.contains("# {trace_id=\"abc\"}") && text.contains("# UNIT"), "{text}");
        assert_eq!(
            plain(&text),
            "# HELP calls_total Calls so far.\n\
             # TYPE calls_total counter\n\
             calls_total{zone=\"a } \\\"# {\\\\\"} 1\n\
             # HELP latency_seconds How long.\n\
             # TYPE latency_seconds histogram\n\
             latency_seconds_sum 0.2\n\
             latency_seconds_count 1\n\
             latency_seconds_bucket{le=\"0.5\"} 1\n\
             latency_seconds_bucket{le=\"+Inf\"} 1\n\
             # HELP size How many.\n\
             # TYPE size gauge\n\
             size 0\n"
        );
    }

    #[test]
    fn openmetrics_is_for_those_who_prefer_it() {
        for (accept, expected) in [
            ("", false),
            ("*/*", false),
            ("text/plain", false),
            ("application/openmetrics-text; version=1.0.0", true),
            // What Prometheus sends.
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
                true,
            ),
            ("text/plain;q=0.9, application/openmetrics-text;q=0.1", false),
            ("application/openmetrics-text;q=0", false),
        ] {
            assert_eq!(prefers_open_metrics(accept), expected, "{accept}");
        }
    }
}

//! Formats a forecast and its findings as text. Pure.

use std::time::Duration;

use serde_json::{Value, json};

use super::checks::{Finding, Level};
use super::forecast::{Clearing, Forecast, Span};
use crate::print::wrap::{paragraph, wrap};
use crate::print::{Cell, Paint, Table, age};

pub(super) fn text(forecast: &Forecast, paint: Paint, width: usize) -> String {
    let mut text = effects(forecast, paint, width);
    text.push('\n');
    text.push_str(&findings(&forecast.findings, paint, width));
    text
}

/// What settings lead to.
pub(super) fn effects(forecast: &Forecast, paint: Paint, width: usize) -> String {
    let mut table = Table::without_headers();
    table.push(["A failed node", ""]);
    for (label, span) in [
        ("  is Unknown after", forecast.unknown),
        ("  is tainted NoExecute after", forecast.tainted),
        ("  has its pods evicted after", forecast.evicted),
    ] {
        table.push([label.to_owned(), between(span)]);
    }
    table.push(["The store writes", ""]);
    table.push([
        "  renewals".to_owned(),
        format!(
            "{}/s, one per node every {}",
            rate(forecast.renewals_per_second),
            exact(forecast.renew_interval)
        ),
    ]);
    table.push(["  unchanged statuses".to_owned(), format!("{}/s", rate(forecast.statuses_per_second))]);
    table.push(["A zone".to_owned(), format!("{} nodes, {} pods", forecast.zone_nodes, forecast.zone_pods)]);
    table.push(["  that fails is cleared after".to_owned(), cleared(&forecast.failed_zone)]);
    if let Some(partial) = &forecast.partial_zone {
        table.push([format!("  with {} nodes down", partial.failed), cleared(partial)]);
    }
    table.take_within(paint, width)
}

/// What was found, and what to do about it.
pub(super) fn findings(findings: &[Finding], paint: Paint, width: usize) -> String {
    let of_finding = |finding: &Finding| {
        let level = Cell::new(finding.level.word());
        let level = match finding.level {
            Level::Broken | Level::Unsafe => level.bad(),
            Level::Warning => level.doubtful(),
            Level::Note => level,
        };
        // The colour must not count as width, so it comes after the text is broken into lines.
        let problem = format!("{}: {}", finding.level.word(), finding.problem);
        let problem = paragraph(&problem, width).replacen(finding.level.word(), &level.painted(paint), 1);
        let remedy = wrap(&finding.remedy, width.saturating_sub(2));
        let remedy: String = remedy.iter().map(|line| format!("  {line}\n")).collect();
        format!("{problem}{remedy}")
    };
    match findings {
        [] => "No problems found.\n".to_owned(),
        findings => findings.iter().map(of_finding).collect::<Vec<_>>().join("\n"),
    }
}

/// The same for programs. Times are in seconds.
pub(super) fn as_document(forecast: &Forecast) -> Value {
    json!({ "effects": effects_as_document(forecast), "findings": findings_as_document(&forecast.findings) })
}

pub(super) fn effects_as_document(forecast: &Forecast) -> Value {
    let span = |span: Span| json!({ "least": span.least.as_secs_f64(), "most": span.most.as_secs_f64() });
    let clearing = |clearing: &Clearing| {
        json!({
            "failedNodes": clearing.failed,
            "nodesPerSecond": clearing.rate,
            "clearedAfter": clearing.cleared_after.map(|time| time.as_secs_f64()),
        })
    };
    json!({
        "renewInterval": forecast.renew_interval.as_secs_f64(),
        "unknownAfter": span(forecast.unknown),
        "taintedAfter": span(forecast.tainted),
        "evictedAfter": span(forecast.evicted),
        "renewalsPerSecond": forecast.renewals_per_second,
        "unchangedStatusesPerSecond": forecast.statuses_per_second,
        "nodesPerZone": forecast.zone_nodes,
        "podsPerZone": forecast.zone_pods,
        "failedZone": clearing(&forecast.failed_zone),
        "partialZone": forecast.partial_zone.as_ref().map(clearing),
    })
}

pub(super) fn findings_as_document(findings: &[Finding]) -> Value {
    let finding = |Finding { level, problem, remedy }: &Finding| json!({ "level": level.word(), "problem": problem, "remedy": remedy });
    findings.iter().map(finding).collect()
}

fn between(span: Span) -> String {
    if span.least == span.most {
        exact(span.most)
    } else {
        format!("{} to {}", exact(span.least), exact(span.most))
    }
}

/// Short durations with a tenth of a second, long ones in the format of ages.
fn exact(duration: Duration) -> String {
    if duration < Duration::from_secs(600) && duration.subsec_millis() > 0 {
        format!("{:.1}s", duration.as_secs_f64())
    } else if duration < Duration::from_secs(600) {
        format!("{}s", duration.as_secs())
    } else {
        age::short(duration)
    }
}

fn cleared(clearing: &Clearing) -> String {
    match clearing.cleared_after {
        Some(time) => format!("{} at {} nodes/s", exact(time), clearing.rate),
        None => "never: no pods are evicted".to_owned(),
    }
}

fn rate(rate: f64) -> String {
    if rate >= 10.0 { format!("{rate:.0}") } else { format!("{rate:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::forecast::{forecast, tests::defaults};

    #[test]
    fn a_forecast_is_printed_with_its_findings() {
        let mut settings = defaults();
        insta::assert_snapshot!("defaults", text(&forecast(&settings), Paint::Plain, usize::MAX));
        settings.grace = Duration::from_secs(15);
        settings.eviction_rate = 0.001;
        settings.zones = 20;
        insta::assert_snapshot!("short_grace_period", text(&forecast(&settings), Paint::Plain, usize::MAX));
    }
}

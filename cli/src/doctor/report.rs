//! Formats a forecast and its findings as text. Pure.

use std::time::Duration;

use super::checks::Level;
use super::forecast::{Clearing, Forecast, Span};
use crate::print::{Cell, Paint, Table, age};

pub(super) fn text(forecast: &Forecast, paint: Paint) -> String {
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
    let mut text = table.take(paint);
    for finding in &forecast.findings {
        let level = match finding.level {
            Level::Unsafe => Cell::new("unsafe").bad(),
            Level::Warning => Cell::new("warning").doubtful(),
            Level::Note => Cell::new("note"),
        };
        text.push_str(&format!("\n{}: {}\n  {}\n", level.painted(paint), finding.problem, finding.remedy));
    }
    if forecast.findings.is_empty() {
        text.push_str("\nNo problems found.\n");
    }
    text
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
        insta::assert_snapshot!("defaults", text(&forecast(&settings), Paint::Plain));
        settings.grace = Duration::from_secs(15);
        settings.eviction_rate = 0.001;
        settings.zones = 20;
        insta::assert_snapshot!("short_grace_period", text(&forecast(&settings), Paint::Plain));
    }
}

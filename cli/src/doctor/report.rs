//! A forecast for a person to read.

use std::time::Duration;

use super::checks::Level;
use super::forecast::{Clearing, Forecast, Span};
use crate::print::{Cell, Paint, Table, age};

pub(super) fn text(forecast: &Forecast, paint: Paint) -> String {
    let mut table = Table::without_headers();
    table.push(["A node that dies", ""]);
    for (label, span) in [
        ("  is Unknown after", forecast.unknown),
        ("  is tainted NoExecute after", forecast.tainted),
        ("  has its pods told to leave after", forecast.evicted),
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
    table.push(["  that dies is cleared after".to_owned(), cleared(&forecast.dead_zone)]);
    if let Some(partial) = &forecast.partial_zone {
        table.push([format!("  with {} nodes down", partial.down), cleared(partial)]);
    }
    let mut text = table.take(paint);
    for finding in &forecast.findings {
        let level = match finding.level {
            Level::Unsafe => Cell::new("unsafe").bad(),
            Level::Doubtful => Cell::new("doubtful").doubtful(),
            Level::Note => Cell::new("note"),
        };
        text.push_str(&format!("\n{}: {}\n  {}\n", level.painted(paint), finding.what, finding.remedy));
    }
    if forecast.findings.is_empty() {
        text.push_str("\nNothing to warn of.\n");
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

/// To the tenth of a second where that matters, else as ages are said.
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
    match clearing.over {
        Some(over) => format!("{} at {} nodes/s", exact(over), clearing.rate),
        None => "never: nothing moves".to_owned(),
    }
}

fn rate(rate: f64) -> String {
    if rate >= 10.0 { format!("{rate:.0}") } else { format!("{rate:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::forecast::{judge, tests::usual};

    #[test]
    fn a_forecast_reads_as_a_page() {
        let mut settings = usual();
        insta::assert_snapshot!("usual", text(&judge(&settings), Paint::Plain));
        settings.grace = Duration::from_secs(15);
        settings.eviction_rate = 0.001;
        settings.zones = 20;
        insta::assert_snapshot!("hasty", text(&judge(&settings), Paint::Plain));
    }
}

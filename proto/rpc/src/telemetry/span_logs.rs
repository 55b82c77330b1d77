//! Log lines within spans: a line has the ids of its span, and the span has the line as an event.
//!
//! Only for spans that are recorded: ids of other spans could not be looked up.

use std::fmt;

use opentelemetry::trace::TraceContextExt;
use opentelemetry::{Context, KeyValue};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer;
use tracing_subscriber::registry::LookupSpan;

use super::LogFormat;
use crate::trace;

/// Formats a line with `inner` and appends the ids of the current span.
pub(super) struct Traced<F> {
    pub(super) inner: F,
    pub(super) format: LogFormat,
}

impl<S, N, F> FormatEvent<S, N> for Traced<F>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let Some(place) = trace::current().filter(|place| place.is_sampled()) else {
            return self.inner.format_event(context, writer, event);
        };
        let mut line = String::new();
        self.inner.format_event(context, Writer::new(&mut line), event)?;
        let (trace, span) = (place.trace_id(), place.span_id());
        let line = line.trim_end();
        match self.format {
            LogFormat::Text => writeln!(writer, "{line} trace_id={trace} span_id={span}"),
            LogFormat::Json => {
                let open = line.strip_suffix('}').ok_or(fmt::Error)?;
                writeln!(writer, "{open},\"trace_id\":\"{trace}\",\"span_id\":\"{span}\"}}")
            }
        }
    }
}

/// Adds log lines to the current span as events.
pub(super) struct KeepLines;

impl<S: Subscriber> Layer<S> for KeepLines {
    fn on_event(&self, event: &Event<'_>, _: layer::Context<'_, S>) {
        Context::map_current(|context| {
            let span = context.span();
            if span.is_recording() {
                let level = KeyValue::new("level", event.metadata().level().as_str());
                let mut said = Said { message: String::new(), fields: vec![level] };
                event.record(&mut said);
                span.add_event(said.message, said.fields);
            }
        });
    }
}

/// The fields of a line.
struct Said {
    message: String,
    fields: Vec<KeyValue>,
}

impl Said {
    fn take(&mut self, field: &Field, text: String) {
        if field.name() == "message" {
            self.message = text;
        } else {
            self.fields.push(KeyValue::new(field.name(), text));
        }
    }
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.take(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field, value.to_owned());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.fields.push(KeyValue::new(field.name(), value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.fields.push(KeyValue::new(field.name(), value));
    }
}

#[cfg(test)]
mod tests;

//! Traces: one story across calls, processes and time, told in OpenTelemetry's words.
//!
//! A [`Span`] is something that takes its time; [`Traceparent`] is its place in a trace, which crosses processes in the
//! headers of a call and in the store's changes. Whether a trace is recorded is drawn where it begins and followed by
//! everybody after. A span that is not recorded holds nothing but its place, and a process without a collector makes
//! none of its own: it passes on what it was given.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context as TaskContext, Poll};
use std::time::SystemTime;

use jiff::Timestamp;
use opentelemetry::trace::{Link, Span as _, SpanBuilder, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, ContextGuard, KeyValue, Value};
use opentelemetry_sdk::trace::SdkTracer;
use pin_project_lite::pin_project;

mod traceparent;

pub use opentelemetry::trace::SpanKind;
pub use traceparent::Traceparent;

/// What makes the spans of this process; none without a collector.
static TRACER: OnceLock<SdkTracer> = OnceLock::new();

/// Makes this tracer the one of the process; says whether there was none before. `telemetry` does this, and tests that
/// look at spans.
pub fn install(tracer: SdkTracer) -> bool {
    TRACER.set(tracer).is_ok()
}

/// Whether spans are made here at all.
pub fn is_on() -> bool {
    TRACER.get().is_some()
}

/// The `traceparent` of the current span, if it is being recorded.
///
/// The store writes it into each change; a span that nobody will ever see is not worth the bytes, hence `None` for one
/// that is not sampled.
pub fn current_traceparent() -> Option<String> {
    current().filter(|place| place.is_sampled()).map(|place| place.to_string())
}

/// The place of the current span, recorded or not.
pub fn current() -> Option<Traceparent> {
    Context::map_current(place)
}

fn place(context: &Context) -> Option<Traceparent> {
    Traceparent::of(context.span().span_context())
}

/// A span of that name, to be begun: below the current one, unless it is put elsewhere.
pub fn span(name: impl Into<Cow<'static, str>>) -> Draft {
    Draft { name: name.into(), kind: SpanKind::Internal, parent: None, links: Vec::new(), start: None }
}

/// What a span begins with.
#[derive(Clone, Debug)]
pub struct Draft {
    name: Cow<'static, str>,
    kind: SpanKind,
    parent: Option<Traceparent>,
    links: Vec<Traceparent>,
    start: Option<Timestamp>,
}

impl Draft {
    #[must_use]
    pub fn kind(self, kind: SpanKind) -> Draft {
        Draft { kind, ..self }
    }

    /// Under another name.
    #[must_use]
    pub fn named(self, name: impl Into<Cow<'static, str>>) -> Draft {
        Draft { name: name.into(), ..self }
    }

    /// Below that span, in this process or another.
    #[must_use]
    pub fn below(self, parent: Traceparent) -> Draft {
        Draft { parent: Some(parent), ..self }
    }

    /// With links to spans that it follows from without being part of them.
    #[must_use]
    pub fn linked_to(mut self, others: impl IntoIterator<Item = Traceparent>) -> Draft {
        self.links.extend(others);
        self
    }

    /// It began then, and is only told of now.
    #[must_use]
    pub fn since(self, start: Timestamp) -> Draft {
        Draft { start: Some(start), ..self }
    }

    /// Begins it.
    pub fn begin(self) -> Span {
        let parent = match self.parent {
            Some(parent) => Context::new().with_remote_span_context(parent.context()),
            None => Context::current(),
        };
        let Some(tracer) = TRACER.get() else {
            return Span(place(&parent).map(|_| parent));
        };
        let mut builder = SpanBuilder::from_name(self.name).with_kind(self.kind);
        builder.start_time = self.start.map(SystemTime::from);
        if !self.links.is_empty() {
            let links = self.links.iter().map(|other| Link::with_context(other.context()));
            builder.links = Some(links.collect());
        }
        let span = tracer.build_with_context(builder, &parent);
        Span(Some(if span.is_recording() {
            Context::new().with_span(span)
        } else {
            Context::new().with_remote_span_context(span.span_context().clone())
        }))
    }
}

/// Something that takes its time. It ends when it is told to, or with its last clone.
#[derive(Clone, Debug, Default)]
pub struct Span(Option<Context>);

impl Span {
    /// No span at all.
    pub const NONE: Span = Span(None);

    /// Somebody else's span, to act within.
    pub fn of(place: Traceparent) -> Span {
        Span(Some(Context::new().with_remote_span_context(place.context())))
    }

    /// Its place, for others to be put below it or to link to it.
    pub fn place(&self) -> Option<Traceparent> {
        self.0.as_ref().and_then(place)
    }

    /// Whether anybody will see it. If not, what is said of it is lost, and need not be put together.
    pub fn is_recorded(&self) -> bool {
        self.0.as_ref().is_some_and(|context| context.span().is_recording())
    }

    pub fn rename(&self, name: impl Into<Cow<'static, str>>) {
        if let Some(context) = &self.0 {
            context.span().update_name(name);
        }
    }

    pub fn set(&self, key: &'static str, value: impl Into<Value>) {
        if let Some(context) = &self.0 {
            context.span().set_attribute(KeyValue::new(key, value));
        }
    }

    /// It did not go well.
    pub fn fail(&self, why: impl Into<Cow<'static, str>>) {
        if let Some(context) = &self.0 {
            context.span().set_status(Status::error(why));
        }
    }

    pub fn end(&self) {
        if let Some(context) = &self.0 {
            context.span().end();
        }
    }

    /// It ended then, and is only told of now.
    pub fn end_at(&self, end: Timestamp) {
        if let Some(context) = &self.0 {
            context.span().end_with_timestamp(end.into());
        }
    }

    /// The current span of this thread while the guard lives.
    pub fn enter(&self) -> Option<ContextGuard> {
        self.0.clone().map(Context::attach)
    }

    /// The current span of a future, wherever that is polled.
    pub fn around<F: Future>(&self, inner: F) -> Around<F> {
        Around { inner, span: self.clone() }
    }
}

pin_project! {
    /// A future within a span.
    pub struct Around<F> {
        #[pin]
        inner: F,
        span: Span,
    }
}

impl<F: Future> Future for Around<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _entered = this.span.enter();
        this.inner.poll(cx)
    }
}

#[cfg(test)]
pub(crate) mod tests;

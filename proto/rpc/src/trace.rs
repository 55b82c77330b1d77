//! Tracing with OpenTelemetry spans, across calls and processes.
//!
//! A [`Span`] is an operation with a duration; [`Traceparent`] is its position in a trace, which is propagated in the
//! headers of calls and in the store's changes. Whether a trace is recorded is decided where it begins, and every later
//! part follows that decision. A span that is not recorded has only its traceparent. A process without a collector
//! creates no spans and propagates the traceparent that it received.

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

/// The tracers of this process; none without a collector.
static TRACERS: OnceLock<Tracers> = OnceLock::new();

/// The tracers of a process: its own, and one for each part of Muster that it names as a service.
struct Tracers {
    own: SdkTracer,
    parts: Vec<(Part, SdkTracer)>,
}

impl Tracers {
    fn of(&self, part: Option<Part>) -> &SdkTracer {
        let named = self.parts.iter().find(|(name, _)| Some(*name) == part);
        named.map_or(&self.own, |(_, tracer)| tracer)
    }
}

/// A part of Muster by the name of its service, such as `muster-store`. Where a process is one part, it has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part(pub &'static str);

impl Part {
    pub const STORE: Part = Part("muster-store");
    pub const CONTROLLER: Part = Part("muster-controller");
    pub const AGENT: Part = Part("muster-agent");
}

/// Installs the tracer of the process; returns false if there was one. Called by `telemetry`, and by tests that check
/// spans.
pub fn install(tracer: SdkTracer) -> bool {
    install_with_parts(tracer, Vec::new())
}

/// The same for a process in which several parts run: the spans of each go to a tracer of its own.
pub fn install_with_parts(own: SdkTracer, parts: Vec<(Part, SdkTracer)>) -> bool {
    TRACERS.set(Tracers { own, parts }).is_ok()
}

/// Whether this process creates spans.
pub fn is_on() -> bool {
    TRACERS.get().is_some()
}

/// The `traceparent` of the current span, if it is being recorded.
///
/// The store writes it into each change. `None` for a span that is not sampled: it is never exported, so storing it
/// would waste space.
pub fn current_traceparent() -> Option<String> {
    current().filter(|place| place.is_sampled()).map(|place| place.to_string())
}

/// The traceparent of the current span, recorded or not.
pub fn current() -> Option<Traceparent> {
    Context::map_current(place)
}

fn place(context: &Context) -> Option<Traceparent> {
    Traceparent::of(context.span().span_context())
}

/// A span of that name, to be started; its parent is the current span unless another one is set.
pub fn span(name: impl Into<Cow<'static, str>>) -> Draft {
    Draft {
        name: name.into(),
        kind: SpanKind::Internal,
        parent: None,
        part: None,
        links: Vec::new(),
        start: None,
    }
}

/// The name, parent, links and attributes of a span to be started.
#[derive(Clone, Debug)]
pub struct Draft {
    name: Cow<'static, str>,
    kind: SpanKind,
    parent: Option<Traceparent>,
    /// `None` for that of the current span.
    part: Option<Part>,
    links: Vec<Traceparent>,
    start: Option<Timestamp>,
}

impl Draft {
    #[must_use]
    pub fn kind(self, kind: SpanKind) -> Draft {
        Draft { kind, ..self }
    }

    /// With another name.
    #[must_use]
    pub fn named(self, name: impl Into<Cow<'static, str>>) -> Draft {
        Draft { name: name.into(), ..self }
    }

    /// As a child of that span, of this process or another.
    #[must_use]
    pub fn below(self, parent: Traceparent) -> Draft {
        Draft { parent: Some(parent), ..self }
    }

    /// As a span of that part. Without it a span belongs to the part of the current span.
    #[must_use]
    pub fn of(self, part: impl Into<Option<Part>>) -> Draft {
        Draft { part: part.into().or(self.part), ..self }
    }

    /// With links to spans that caused it but are not its parents.
    #[must_use]
    pub fn linked_to(mut self, others: impl IntoIterator<Item = Traceparent>) -> Draft {
        self.links.extend(others);
        self
    }

    /// With a start time in the past.
    #[must_use]
    pub fn since(self, start: Timestamp) -> Draft {
        Draft { start: Some(start), ..self }
    }

    /// Starts the span.
    pub fn begin(self) -> Span {
        let parent = match self.parent {
            Some(parent) => Context::new().with_remote_span_context(parent.context()),
            None => Context::current(),
        };
        let Some(tracers) = TRACERS.get() else {
            return Span(place(&parent).map(|_| parent));
        };
        let part = self.part.or_else(|| Context::map_current(|current| current.get::<Part>().copied()));
        let tracer = tracers.of(part);
        let mut builder = SpanBuilder::from_name(self.name).with_kind(self.kind);
        builder.start_time = self.start.map(SystemTime::from);
        if !self.links.is_empty() {
            let links = self.links.iter().map(|other| Link::with_context(other.context()));
            builder.links = Some(links.collect());
        }
        let span = tracer.build_with_context(builder, &parent);
        let context = if span.is_recording() {
            Context::new().with_span(span)
        } else {
            Context::new().with_remote_span_context(span.span_context().clone())
        };
        // Only where it makes a difference: a value in a context is an allocation.
        match part.filter(|_| !tracers.parts.is_empty()) {
            Some(part) => Span(Some(context.with_value(part))),
            None => Span(Some(context)),
        }
    }
}

/// A span. It ends with [`Span::end_at`] or when its last clone is dropped.
#[derive(Clone, Debug, Default)]
pub struct Span(Option<Context>);

impl Span {
    /// No span at all.
    pub const NONE: Span = Span(None);

    /// A span of another process, to create children of.
    pub fn of(place: Traceparent) -> Span {
        Span(Some(Context::new().with_remote_span_context(place.context())))
    }

    /// Its traceparent, for children and links.
    pub fn place(&self) -> Option<Traceparent> {
        self.0.as_ref().and_then(place)
    }

    /// Whether it is recorded. If not, attributes and events are dropped and need not be computed.
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

    /// Marks the span as failed.
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

    /// Ends the span with an end time in the past.
    pub fn end_at(&self, end: Timestamp) {
        if let Some(context) = &self.0 {
            context.span().end_with_timestamp(end.into());
        }
    }

    /// Makes it the current span of this thread while the guard lives.
    pub fn enter(&self) -> Option<ContextGuard> {
        self.0.clone().map(Context::attach)
    }

    /// Makes it the current span of a future, whenever that is polled.
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

//! The W3C `traceparent`: a span's position in a trace, as text.

use std::fmt;

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// The position of a span: its trace id, its own id, and whether it is recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Traceparent {
    trace: TraceId,
    span: SpanId,
    is_sampled: bool,
}

impl Traceparent {
    /// Parses a W3C `traceparent`: version, trace id, parent id and flags in lower-case hexadecimal.
    pub fn parse(text: &str) -> Option<Traceparent> {
        let mut parts = text.trim().split('-');
        let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let lengths = [version.len(), trace.len(), parent.len(), flags.len()];
        let lower_hex = |part: &str| part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if lengths != [2, 32, 16, 2] || ![version, trace, parent, flags].into_iter().all(lower_hex) {
            return None;
        }
        // Version 00 has four parts exactly; a later one may add more; ff is forbidden.
        if version == "ff" || (version == "00" && parts.next().is_some()) {
            return None;
        }
        let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
        let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(parent).ok()?);
        Traceparent { trace, span, is_sampled: flags.is_sampled() }.valid()
    }

    /// The traceparent of a context; `None` if it has none.
    pub(super) fn of(context: &SpanContext) -> Option<Traceparent> {
        let (trace, span) = (context.trace_id(), context.span_id());
        Traceparent { trace, span, is_sampled: context.is_sampled() }.valid()
    }

    fn valid(self) -> Option<Traceparent> {
        (self.trace != TraceId::INVALID && self.span != SpanId::INVALID).then_some(self)
    }

    pub(super) fn context(self) -> SpanContext {
        let flags = TraceFlags::default().with_sampled(self.is_sampled);
        SpanContext::new(self.trace, self.span, flags, true, TraceState::default())
    }

    pub fn is_sampled(self) -> bool {
        self.is_sampled
    }

    pub fn trace_id(self) -> TraceId {
        self.trace
    }

    pub fn span_id(self) -> SpanId {
        self.span
    }
}

impl fmt::Display for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sampled = u8::from(self.is_sampled());
        write!(f, "00-{:032x}-{:016x}-{sampled:02x}", self.trace_id(), self.span_id())
    }
}

impl fmt::Debug for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    #[test]
    fn a_traceparent_is_read_as_the_w3c_writes_it() {
        for (text, expected) in [
            (SAMPLED, Some(SAMPLED)),
            (UNSAMPLED, Some(UNSAMPLED)),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff", Some(SAMPLED)),
            ("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", Some(SAMPLED)),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", None),
            ("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None),
            ("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", None),
            ("00-00000000000000000000000000000000-b7ad6b7169203331-01", None),
            ("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", None),
            ("00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01", None),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", None),
            ("00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None),
            ("", None),
        ] {
            let found = Traceparent::parse(text).map(|place| place.to_string());
            assert_eq!(found.as_deref(), expected, "{text:?}");
        }
    }
}

//! Validation: all violations of a request, reported at once.
//!
//! A conversion walks the message with a [`Path`] and reports into one [`Check`]; the caller gets an
//! [`Invalid`] that names every invalid field, spelled as grpcurl shows it (`spec.podCidrs[0]`). Paths
//! borrow their parents and become text only when something is wrong, so a valid message costs no
//! allocation here.

use std::fmt;

/// One field and the rule it breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Where: a camelCase path such as `spec.taints[0].key`; empty when the whole message is meant.
    pub field: String,
    /// Which rule; the text continues after the field, as in "must be 253 bytes or fewer".
    pub reason: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.as_str() {
            "" => f.write_str(&self.reason),
            field => write!(f, "{field}: {}", self.reason),
        }
    }
}

/// A message that breaks at least one rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", Joined(.violations))]
pub struct Invalid {
    pub violations: Vec<Violation>,
}

impl Invalid {
    /// A single violation, for rules that are checked alone.
    pub fn of(field: impl fmt::Display, reason: impl fmt::Display) -> Self {
        Self { violations: vec![Violation { field: field.to_string(), reason: reason.to_string() }] }
    }
}

struct Joined<'a>(&'a [Violation]);

impl fmt::Display for Joined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, violation) in self.0.iter().enumerate() {
            write!(f, "{}{violation}", if i == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

/// A place in a message, extended step by step: `path.key("taints").index(0).key("key")`.
///
/// Each step borrows the one before, so bind a parent to a name before keeping its child in a variable.
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Root,
    Key(&'a str),
    Index(usize),
    Entry(&'a str),
}

impl<'a> Path<'a> {
    /// The message itself.
    pub const ROOT: Path<'static> = Path { parent: None, step: Step::Root };

    /// A field, in camelCase; `key` may itself be dotted.
    pub fn key(&'a self, key: &'a str) -> Self {
        Self { parent: Some(self), step: Step::Key(key) }
    }

    /// An element of a list.
    pub fn index(&'a self, index: usize) -> Self {
        Self { parent: Some(self), step: Step::Index(index) }
    }

    /// An entry of a map, by the caller's own key.
    pub fn entry(&'a self, key: &'a str) -> Self {
        Self { parent: Some(self), step: Step::Entry(key) }
    }

    fn is_root(&self) -> bool {
        matches!(self.step, Step::Root)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
            if matches!(self.step, Step::Key(_)) && !parent.is_root() {
                f.write_str(".")?;
            }
        }
        match self.step {
            Step::Root => Ok(()),
            Step::Key(key) => f.write_str(key),
            Step::Index(index) => write!(f, "[{index}]"),
            Step::Entry(key) => write!(f, "[{}]", Quoted(key)),
        }
    }
}

/// The caller's own text inside a message: quoted, escaped, and cut when long, since an error travels in a
/// header.
pub(crate) struct Quoted<'a>(pub(crate) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 64;
        match self.0.char_indices().nth(SHOWN) {
            Some((cut, _)) => write!(f, "{:?}...", &self.0[..cut]),
            None => write!(f, "{:?}", self.0),
        }
    }
}

/// Collects violations while a message is converted.
#[derive(Debug, Default)]
pub struct Check {
    violations: Vec<Violation>,
    unlisted: usize,
}

impl Check {
    /// Beyond this many the rest are only counted: the list has to fit the headers it travels in.
    pub const LISTED: usize = 32;

    pub fn new() -> Self {
        Self::default()
    }

    /// Reports that the field at `path` breaks a rule.
    pub fn fail(&mut self, path: &Path<'_>, reason: impl fmt::Display) {
        if self.violations.len() < Self::LISTED {
            self.violations.push(Violation { field: path.to_string(), reason: reason.to_string() });
        } else {
            self.unlisted += 1;
        }
    }

    /// The value, or a violation at `path` with the error's text as its reason.
    pub fn field<T, E: fmt::Display>(&mut self, path: &Path<'_>, result: Result<T, E>) -> Option<T> {
        result.map_err(|reason| self.fail(path, reason)).ok()
    }

    /// A field that must be there.
    pub fn required<T>(&mut self, path: &Path<'_>, value: Option<T>) -> Option<T> {
        if value.is_none() {
            self.fail(path, "is required");
        }
        value
    }

    /// A rule that either holds or does not.
    pub fn ensure(&mut self, path: &Path<'_>, holds: bool, reason: impl fmt::Display) {
        if !holds {
            self.fail(path, reason);
        }
    }

    /// Converts a list with each element's own path; elements that fail are left out (and reported).
    pub fn each<R, T>(
        &mut self,
        path: &Path<'_>,
        items: impl IntoIterator<Item = R>,
        mut convert: impl FnMut(&mut Check, &Path<'_>, R) -> Option<T>,
    ) -> Vec<T> {
        let items = items.into_iter().enumerate();
        items.filter_map(|(i, item)| convert(self, &path.index(i), item)).collect()
    }

    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// The value, if nothing was reported.
    pub fn finish<T>(self, value: T) -> Result<T, Invalid> {
        if self.is_clean() { Ok(value) } else { Err(self.into_invalid()) }
    }

    /// As [`finish`](Self::finish), for a value assembled with `?` out of checked fields.
    pub fn finish_some<T>(self, value: Option<T>) -> Result<T, Invalid> {
        match value {
            Some(value) => self.finish(value),
            None => Err(self.into_invalid()),
        }
    }

    fn into_invalid(mut self) -> Invalid {
        if self.unlisted > 0 {
            let reason = format!("and {} more", self.unlisted);
            self.violations.push(Violation { field: String::new(), reason });
        }
        if self.violations.is_empty() {
            // A conversion returned nothing and reported nothing. Refusing the message is still right.
            return Invalid::of("", "is not valid");
        }
        Invalid { violations: self.violations }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_read_as_grpcurl_shows_them() {
        let root = Path::ROOT;
        let spec = root.key("spec");
        let labels = root.key("metadata").key("labels").entry("a/b").to_string();
        for (shown, expected) in [
            (root.to_string(), ""),
            (spec.to_string(), "spec"),
            (spec.key("podCidrs").index(0).to_string(), "spec.podCidrs[0]"),
            (spec.key("taints").index(12).key("key").to_string(), "spec.taints[12].key"),
            (root.index(3).key("name").to_string(), "[3].name"),
            (labels, r#"metadata.labels["a/b"]"#),
            (root.entry(&"x".repeat(65)).to_string(), &format!("[\"{}\"...]", "x".repeat(64))),
            (root.entry("new\nline").to_string(), r#"["new\nline"]"#),
        ] {
            assert_eq!(shown, expected);
        }
    }

    #[test]
    fn every_violation_is_reported_in_order() {
        let mut check = Check::new();
        let ports = check.each(&Path::ROOT.key("ports"), ["80", "x", "443", ""], |check, path, text| {
            check.field(&path.key("number"), text.parse::<u16>().map_err(|_| "must be a number"))
        });
        check.required(&Path::ROOT.key("name"), None::<()>);
        check.ensure(&Path::ROOT.key("count"), 1 > 2, "must be small");
        check.ensure(&Path::ROOT.key("size"), 1 < 2, "must be large");
        assert_eq!(ports, [80, 443]);
        assert_eq!(
            check.finish(()).unwrap_err().to_string(),
            "ports[1].number: must be a number; ports[3].number: must be a number; name: is required; \
             count: must be small"
        );
    }

    #[test]
    fn finish_returns_the_value_only_without_violations() {
        assert_eq!(Check::new().finish(1), Ok(1));
        assert_eq!(Check::new().finish_some(Some(1)), Ok(1));
        let mut dirty = Check::new();
        dirty.fail(&Path::ROOT.key("a"), "is wrong");
        assert_eq!(dirty.finish_some(Some(1)), Err(Invalid::of("a", "is wrong")));
        assert_eq!(Check::new().finish_some(None::<()>), Err(Invalid::of("", "is not valid")));
    }

    #[test]
    fn a_flood_of_violations_is_counted_not_listed() {
        let mut check = Check::new();
        for i in 0..Check::LISTED + 5 {
            check.fail(&Path::ROOT.index(i), "is wrong");
        }
        let invalid = check.finish(()).unwrap_err();
        assert_eq!(invalid.violations.len(), Check::LISTED + 1);
        assert!(invalid.to_string().ends_with("[31]: is wrong; and 5 more"), "{invalid}");
    }
}

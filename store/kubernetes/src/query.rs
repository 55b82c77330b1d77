//! The parameters of a request. Pure.

use crate::path::decode;
use crate::status::Failure;

/// What follows the `?`. Unknown parameters are ignored, as Kubernetes does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Query {
    pairs: Vec<(String, String)>,
}

/// What happens with fields that the server does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Strict,
    Warn,
    Ignore,
}

impl Query {
    pub(crate) fn parse(text: &str) -> Query {
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).filter_map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((decode(name, true)?, decode(value, true)?))
        });
        Query { pairs: pairs.collect() }
    }

    /// The first value of a parameter; empty without one.
    pub(crate) fn get(&self, name: &str) -> &str {
        self.pairs.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        !self.get(name).is_empty()
    }

    /// False only for `0`, `false` and what is absent; Python sends `True`.
    pub(crate) fn flag(&self, name: &str) -> bool {
        let given = self.pairs.iter().find(|(known, _)| known == name);
        given.is_some_and(|(_, value)| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    /// A number; 0 without one.
    pub(crate) fn number(&self, name: &str) -> Result<u64, Failure> {
        match self.get(name) {
            "" => Ok(0),
            text => text.parse().map_err(|_| {
                Failure::bad_request(format!("{name}: Invalid value: {text:?}: must be a number"))
            }),
        }
    }

    /// Whether nothing is to be written.
    pub(crate) fn dry_run(&self) -> Result<bool, Failure> {
        is_dry_run(self.pairs.iter().filter(|(name, _)| name == "dryRun").map(|(_, value)| value.as_str()))
    }

    pub(crate) fn field_validation(&self) -> Result<FieldValidation, Failure> {
        match self.get("fieldValidation") {
            "Strict" => Ok(FieldValidation::Strict),
            "" | "Warn" => Ok(FieldValidation::Warn),
            "Ignore" => Ok(FieldValidation::Ignore),
            other => Err(Failure::unprocessable(format!(
                "fieldValidation: Unsupported value: {other:?}: supported values: \"Ignore\", \"Strict\", \"Warn\""
            ))),
        }
    }
}

/// Whether these values of `dryRun` ask for one.
pub(crate) fn is_dry_run<'a>(values: impl Iterator<Item = &'a str>) -> Result<bool, Failure> {
    let mut found = false;
    for value in values.filter(|value| !value.is_empty()) {
        if value != "All" {
            let message = format!("dryRun: Unsupported value: {value:?}: supported values: \"All\"");
            return Err(Failure::unprocessable(message));
        }
        found = true;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_as_clients_write_them() {
        let query = Query::parse(
            "watch=True&labelSelector=a%3Db%2Cc+in+%28x%29&limit=500&allowWatchBookmarks=FALSE&x",
        );
        assert!(query.flag("watch") && !query.flag("allowWatchBookmarks") && query.flag("x"));
        assert_eq!(query.get("labelSelector"), "a=b,c in (x)");
        assert_eq!(query.number("limit").ok(), Some(500));
        assert_eq!(query.number("timeoutSeconds").ok(), Some(0));
        assert!(Query::parse("limit=many").number("limit").is_err());
        assert_eq!(Query::parse(""), Query::default());
    }

    #[test]
    fn only_all_is_a_dry_run() {
        for (text, expected) in
            [("", Some(false)), ("dryRun=All", Some(true)), ("dryRun=", Some(false)), ("dryRun=all", None)]
        {
            assert_eq!(Query::parse(text).dry_run().ok(), expected, "{text}");
        }
    }
}

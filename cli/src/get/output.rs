//! The output formats of `muster get`.

use std::str::FromStr;

use serde_json::Value;

use crate::jsonpath::{Path, Template, joined};
use crate::print::document::Language;
use crate::print::{NONE, Table};

/// How records are printed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Output {
    /// A table with more columns
    Wide,
    /// JSON or YAML that `muster apply` understands
    Document(Language),
    /// KIND/NAME, one per line
    Name,
    JsonPath(Template),
    Columns(Columns),
}

const FORMATS: &str =
    "the formats are wide, json, yaml, name, jsonpath=TEMPLATE and custom-columns=HEADER:PATH,...";

impl FromStr for Output {
    type Err = String;

    fn from_str(text: &str) -> Result<Output, String> {
        match text.split_once('=') {
            Some(("jsonpath", template)) => {
                template.parse().map(Output::JsonPath).map_err(|error| error.to_string())
            }
            Some(("custom-columns", columns)) => columns.parse().map(Output::Columns),
            None if text == "jsonpath" => Err("give a template: -o jsonpath='{.metadata.name}'".to_owned()),
            None if text == "custom-columns" => {
                Err("give columns: -o custom-columns=NAME:.metadata.name,ZONE:.spec.zone".to_owned())
            }
            _ => match text {
                "wide" => Ok(Output::Wide),
                "json" => Ok(Output::Document(Language::Json)),
                "yaml" => Ok(Output::Document(Language::Yaml)),
                "name" => Ok(Output::Name),
                _ => Err(FORMATS.to_owned()),
            },
        }
    }
}

/// The columns of `-o custom-columns=`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Columns(Vec<(String, Path)>);

impl FromStr for Columns {
    type Err = String;

    fn from_str(text: &str) -> Result<Columns, String> {
        let column = |text: &str| {
            let (header, path) = text
                .split_once(':')
                .filter(|(header, path)| !header.is_empty() && !path.is_empty())
                .ok_or_else(|| {
                    format!("`{text}` is not a column; a column is HEADER:PATH, as NAME:.metadata.name")
                })?;
            let path: Path = path.parse().map_err(|error| format!("column {header}: {error}"))?;
            Ok((header.to_owned(), path))
        };
        split_outside_brackets(text).into_iter().map(column).collect::<Result<_, String>>().map(Columns)
    }
}

/// Splits at commas, except for those in brackets: `A:.x[0,1],B:.y` has two columns.
fn split_outside_brackets(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0_usize);
    for (i, c) in text.char_indices() {
        match c {
            '[' | '(' => depth += 1,
            ']' | ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

impl Columns {
    pub(crate) fn headers(&self) -> Vec<String> {
        self.0.iter().map(|(header, _)| header.clone()).collect()
    }

    pub(crate) fn row(&self, record: &Value) -> Vec<String> {
        let cell = |(_, path): &(String, Path)| match path.find(record).as_slice() {
            [] => NONE.to_owned(),
            found => joined(found, ","),
        };
        self.0.iter().map(cell).collect()
    }

    pub(crate) fn table(&self, records: &[Value], with_headers: bool) -> Table {
        let mut table = if with_headers { Table::new(self.headers()) } else { Table::without_headers() };
        for record in records {
            table.push(self.row(record));
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::print::Paint;
    use serde_json::json;

    #[test]
    fn a_format_is_a_word_or_has_a_template() {
        assert_eq!("wide".parse(), Ok(Output::Wide));
        assert_eq!("yaml".parse(), Ok(Output::Document(Language::Yaml)));
        assert!(matches!("jsonpath={.a}".parse(), Ok(Output::JsonPath(_))));
        assert!(matches!("jsonpath={.a[?(@.b=='c')]}".parse(), Ok(Output::JsonPath(_))));
        for (text, expected) in [
            ("table", "the formats are wide, json"),
            ("jsonpath", "give a template"),
            ("jsonpath={", "is not closed"),
            ("custom-columns", "give columns"),
            ("custom-columns=NAME", "`NAME` is not a column"),
            ("custom-columns=A:.a,:.b", "`:.b` is not a column"),
            ("custom-columns=A:.a[", "column A: expected a number"),
        ] {
            let refused = text.parse::<Output>().unwrap_err();
            assert!(refused.contains(expected), "{text}: {refused}");
        }
    }

    #[test]
    fn columns_have_values_or_none() {
        let columns: Columns = "NAME:.metadata.name,BOTH:.x[0,1],NO:{.nix}".parse().unwrap();
        let records =
            [json!({"metadata": {"name": "a"}, "x": [1, "two"]}), json!({"metadata": {"name": "b"}})];
        assert_eq!(
            columns.table(&records, true).take(Paint::Plain),
            "NAME   BOTH     NO\na      1,two    <none>\nb      <none>   <none>\n"
        );
        assert!(columns.table(&records, false).take(Paint::Plain).starts_with("a "));
    }
}

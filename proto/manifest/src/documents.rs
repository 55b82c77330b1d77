//! Parses the documents of a text in YAML or JSON. A text may hold several documents.

use serde_json::{Deserializer, Value};

use crate::Problem;

/// The documents of a text, without empty ones.
///
/// # Errors
/// When the text is neither YAML nor JSON.
pub fn parse(text: &str) -> Result<Vec<Value>, Problem> {
    let documents = if is_json(text) { json(text) } else { yaml(text) };
    Ok(documents?.into_iter().filter(|document| !document.is_null()).collect())
}

/// Most JSON is valid YAML, but not all of it, and YAML accepts some wrong JSON: `{"a": }` is a null in YAML.
fn is_json(text: &str) -> bool {
    let inside = text.trim_start().strip_prefix('{').map(str::trim_start);
    inside.is_some_and(|inside| inside.starts_with(['"', '}']))
        && !text.lines().any(|line| line.trim_end() == "---")
}

fn json(text: &str) -> Result<Vec<Value>, Problem> {
    let documents: Result<_, serde_json::Error> = Deserializer::from_str(text).into_iter().collect();
    documents.map_err(|error| Problem::Syntax(error.to_string()))
}

fn yaml(text: &str) -> Result<Vec<Value>, Problem> {
    // YAML 1.2: `yes` and `no` are strings. A label may have them as its value; for a boolean field they are an
    // error that names the field.
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|error| Problem::Syntax(error.to_string().replace('\n', " ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn yaml_and_json_may_hold_several_documents() {
        for (text, expected) in [
            ("a: 1\n", vec![json!({"a": 1})]),
            (
                "---\na: 1\n---\n# nothing\n---\nb: [x, yes]\n",
                vec![json!({"a": 1}), json!({"b": ["x", "yes"]})],
            ),
            ("{\"a\": 1}\n\t{\"b\": \"2\"}\n", vec![json!({"a": 1}), json!({"b": "2"})]),
            ("{\n\t\"a\":\t1\n}", vec![json!({"a": 1})]),
            ("{a: 1}\n---\nb: no\n", vec![json!({"a": 1}), json!({"b": "no"})]),
            ("{\"a\": 1}\n---\nb: 2", vec![json!({"a": 1}), json!({"b": 2})]),
            ("[1, 2]", vec![json!([1, 2])]),
            ("# only a comment\n", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(parse(text).unwrap(), expected, "{text:?}");
        }
    }

    #[test]
    fn a_syntax_error_names_its_line() {
        for (text, expected) in
            [("a: [1\n", "line"), ("{\"a\": }", "line 1 column 7"), ("a: 1\na: 2\n", "duplicate")]
        {
            let problem = parse(text).unwrap_err().to_string();
            assert!(problem.contains(expected), "{text:?}: {problem}");
            assert_eq!(problem.lines().count(), 1, "{problem}");
        }
    }
}

//! Examples in a document, and whether what they printed is what the document shows.
//!
//! An example is a fence of `sh`. The fences after it show what it prints: `json` some answers, in order, each with the
//! part that matters; `text` pieces of what it complains of, in which case it has to fail.

use serde_json::Value;

/// An example, and what is shown of its outcome.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Example {
    /// The line of the document that it begins on.
    pub line: usize,
    pub script: String,
    pub answers: Vec<Value>,
    /// Empty of an example that goes well.
    pub complaints: Vec<String>,
}

/// The examples of a Markdown document, in order.
///
/// # Errors
/// When a fence is none of ours, shows the outcome of nothing or is no JSON; the text names its line.
pub fn examples(document: &str) -> Result<Vec<Example>, String> {
    let mut examples: Vec<Example> = Vec::new();
    let mut lines = document.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let Some(language) = line.strip_prefix("```") else { continue };
        let inside = lines.by_ref().map(|(line, _)| line).take_while(|line| *line != "```");
        let text = inside.collect::<Vec<_>>().join("\n");
        let shown = |examples: &mut Vec<Example>| {
            examples.pop().ok_or_else(|| format!("line {number}: the outcome of no example"))
        };
        let example = match language {
            "sh" => Example { line: number, script: text, ..Example::default() },
            "json" => {
                let answers = serde_json::Deserializer::from_str(&text).into_iter().collect();
                let answers: Result<Vec<Value>, _> = answers;
                let answers = answers.map_err(|error| format!("line {number}: {error}"))?;
                Example { answers, ..shown(&mut examples)? }
            }
            "text" => {
                let complaints = text.lines().map(|line| line.trim().to_owned()).collect();
                Example { complaints, ..shown(&mut examples)? }
            }
            other => return Err(format!("line {number}: a fence of {other:?}, not sh, json or text")),
        };
        examples.push(example);
    }
    Ok(examples)
}

/// The calls that an example makes, as `package.Service/Method`.
pub fn calls(script: &str) -> impl Iterator<Item = &str> {
    let ends = |letter: char| !(letter.is_ascii_alphanumeric() || "./_".contains(letter));
    script.split(ends).filter(|word| {
        word.split_once('/').is_some_and(|(service, method)| {
            service.contains('.') && method.starts_with(|first: char| first.is_ascii_uppercase())
        })
    })
}

/// The answers that were shown and did not come, in this order, among those that did.
pub fn missing<'a>(shown: &'a [Value], came: &[Value]) -> Option<&'a Value> {
    let mut came = came.iter();
    shown.iter().find(|shown| !came.any(|came| contains(came, shown)))
}

/// Whether everything shown is in what came: of an object some fields, of a list some elements in their order.
fn contains(came: &Value, shown: &Value) -> bool {
    match (came, shown) {
        (Value::Object(came), Value::Object(shown)) => {
            shown.iter().all(|(key, shown)| came.get(key).is_some_and(|came| contains(came, shown)))
        }
        (Value::Array(came), Value::Array(shown)) => missing(shown, came).is_none(),
        _ => came == shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const DOCUMENT: &str = "\
# A page

```sh
grpcurl $STORE muster.v1.NodeService/GetNode
```

```json
{\"a\": 1}
{\"b\": 2}
```

Words.

```sh
false
```

```text
ERROR:
  Code: NotFound
```
";

    #[test]
    fn a_document_holds_examples_and_their_outcomes() {
        let found = examples(DOCUMENT).unwrap();
        let [first, second] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((first.line, first.script.as_str()), (3, "grpcurl $STORE muster.v1.NodeService/GetNode"));
        assert_eq!(first.answers, [json!({"a": 1}), json!({"b": 2})]);
        assert_eq!((second.line, second.script.as_str()), (14, "false"));
        assert_eq!(second.complaints, ["ERROR:", "Code: NotFound"]);
    }

    #[test]
    fn a_fence_that_says_nothing_to_us_is_named() {
        for (document, complaint) in [
            ("```json\n{}\n```", "line 1: the outcome of no example"),
            ("```sh\ntrue\n```\n\n```json\n{\n```", "line 5: EOF while parsing an object"),
            ("\n```bash\ntrue\n```", "line 2: a fence of \"bash\", not sh, json or text"),
        ] {
            let error = examples(document).unwrap_err();
            assert!(error.starts_with(complaint), "{error}");
        }
    }

    #[test]
    fn calls_are_found_wherever_they_stand_in_a_line() {
        let script = "X=$(grpcurl -d '{\"a\": \"b/C\"}' $STORE muster.v1.PodService/GetPod | cat)\n\
                      grpcurl $STORE grpc.health.v1.Health/Check; cat /etc/Hosts";
        let found: Vec<&str> = calls(script).collect();
        assert_eq!(found, ["muster.v1.PodService/GetPod", "grpc.health.v1.Health/Check"]);
    }

    #[test]
    fn what_is_shown_is_a_part_of_what_came_in_its_order() {
        let came =
            [json!({"events": [{"type": "ADDED", "n": 1}, {"type": "BOOKMARK"}]}), json!({"count": 2})];
        for (shown, expected) in [
            (vec![], None),
            (vec![json!({"count": 2})], None),
            (vec![json!({"events": [{"n": 1}]}), json!({"count": 2})], None),
            (vec![json!({"events": [{"type": "BOOKMARK"}, {"type": "ADDED"}]})], Some(0)),
            (vec![json!({"count": 2}), json!({"events": []})], Some(1)),
            (vec![json!({"count": 3})], Some(0)),
            (vec![json!({"count": 2, "more": null})], Some(0)),
        ] {
            assert_eq!(missing(&shown, &came), expected.map(|index: usize| &shown[index]), "{shown:?}");
        }
    }
}

//! Examples in a Markdown document, and the comparison of their output with what the document shows.
//!
//! An example is a code block of `sh`. The blocks after it show its output: `json` shows answers in order, with the
//! fields that matter; `text` shows parts of its error message, and then the example must fail.

use serde_json::Value;

/// An example with its expected output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Example {
    /// Its first line in the document.
    pub line: usize,
    pub script: String,
    pub answers: Vec<Value>,
    /// Empty for an example that succeeds.
    pub complaints: Vec<String>,
}

/// The examples of a Markdown document, in order.
///
/// # Errors
/// When a block has another language, follows no example, or is not valid JSON; the text names its line.
pub fn examples(document: &str) -> Result<Vec<Example>, String> {
    let mut examples: Vec<Example> = Vec::new();
    let mut lines = document.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let Some(language) = line.strip_prefix("```") else { continue };
        let inside = lines.by_ref().map(|(line, _)| line).take_while(|line| *line != "```");
        let text = inside.collect::<Vec<_>>().join("\n");
        let shown = |examples: &mut Vec<Example>| {
            examples.pop().ok_or_else(|| format!("line {number}: output without an example"))
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
            other => return Err(format!("line {number}: a block of {other:?}, not sh, json or text")),
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

/// The first shown answer that is not among the received ones, in this order.
pub fn missing<'a>(shown: &'a [Value], received: &[Value]) -> Option<&'a Value> {
    let mut received = received.iter();
    shown.iter().find(|shown| !received.any(|received| contains(received, shown)))
}

/// Whether the shown value is part of the received one: some fields of an object, some elements of a list in order.
fn contains(received: &Value, shown: &Value) -> bool {
    match (received, shown) {
        (Value::Object(received), Value::Object(shown)) => shown
            .iter()
            .all(|(key, shown)| received.get(key).is_some_and(|received| contains(received, shown))),
        (Value::Array(received), Value::Array(shown)) => missing(shown, received).is_none(),
        _ => received == shown,
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
    fn examples_are_read_with_their_expected_output() {
        let found = examples(DOCUMENT).unwrap();
        let [first, second] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((first.line, first.script.as_str()), (3, "grpcurl $STORE muster.v1.NodeService/GetNode"));
        assert_eq!(first.answers, [json!({"a": 1}), json!({"b": 2})]);
        assert_eq!((second.line, second.script.as_str()), (14, "false"));
        assert_eq!(second.complaints, ["ERROR:", "Code: NotFound"]);
    }

    #[test]
    fn an_unknown_or_misplaced_block_is_an_error_that_names_its_line() {
        for (document, complaint) in [
            ("```json\n{}\n```", "line 1: output without an example"),
            ("```sh\ntrue\n```\n\n```json\n{\n```", "line 5: EOF while parsing an object"),
            ("\n```bash\ntrue\n```", "line 2: a block of \"bash\", not sh, json or text"),
        ] {
            let error = examples(document).unwrap_err();
            assert!(error.starts_with(complaint), "{error}");
        }
    }

    #[test]
    fn calls_are_found_anywhere_in_a_line() {
        let script = "X=$(grpcurl -d '{\"a\": \"b/C\"}' $STORE muster.v1.PodService/GetPod | cat)\n\
                      grpcurl $STORE grpc.health.v1.Health/Check; cat /etc/Hosts";
        let found: Vec<&str> = calls(script).collect();
        assert_eq!(found, ["muster.v1.PodService/GetPod", "grpc.health.v1.Health/Check"]);
    }

    #[test]
    fn shown_answers_are_parts_of_the_received_ones_in_order() {
        let received =
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
            assert_eq!(missing(&shown, &received), expected.map(|index: usize| &shown[index]), "{shown:?}");
        }
    }
}

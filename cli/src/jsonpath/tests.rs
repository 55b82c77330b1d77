use super::*;
use serde_json::json;

fn document() -> Value {
    json!({
        "kind": "List",
        "items": [
            {
                "metadata": {"name": "a", "labels": {"kubernetes.io/hostname": "host-a", "tier": "x"}},
                "status": {
                    "restarts": "12",
                    "conditions": [
                        {"type": "Ready", "status": "True"},
                        {"type": "MemoryPressure", "status": "False"},
                    ],
                },
            },
            {
                "metadata": {"name": "b"},
                "spec": {"unschedulable": true},
                "status": {"restarts": 3, "conditions": [{"type": "Ready", "status": "False"}]},
            },
            {"metadata": {"name": "c"}},
        ],
    })
}

fn render(template: &str) -> String {
    template.parse::<Template>().unwrap_or_else(|error| panic!("{template}: {error}")).render(&document())
}

#[test]
fn templates_are_rendered_as_kubectl_renders_them() {
    for (template, expected) in [
        ("{.kind}", "List"),
        ("kind: {.kind}!", "kind: List!"),
        ("{.items[*].metadata.name}", "a b c"),
        ("{.Items[0].METADATA.name}", "a"),
        ("{$.items[0].metadata.name}", "a"),
        ("{.items[-1].metadata.name}", "c"),
        ("{.items[0:2].metadata.name}", "a b"),
        ("{.items[::2].metadata.name}", "a c"),
        ("{.items[1:].metadata.name}", "b c"),
        ("{.items[0,2].metadata.name}", "a c"),
        ("{.items[7].metadata.name}", ""),
        ("{['kind']}", "List"),
        ("{.items[0]['metadata'].name}", "a"),
        ("{.items[0].metadata['name','labels'].tier}", "x"),
        (r"{.items[0].metadata.labels.kubernetes\.io/hostname}", "host-a"),
        ("{.items[0].metadata.labels['kubernetes.io/hostname']}", "host-a"),
        ("{..name}", "a b c"),
        ("{.items[*].metadata.*}", r#"{"kubernetes.io/hostname":"host-a","tier":"x"} a b c"#),
        (r#"{range .items[*]}{.metadata.name}{"\n"}{end}"#, "a\nb\nc\n"),
        (r"{range .items[*]}{@.metadata.name}{'\t'}{$.kind};{end}.", "a\tList;b\tList;c\tList;."),
        (
            r#"{range .items[*]}{.metadata.name}:{range .status.conditions[*]} {.type}{end}{"\n"}{end}"#,
            "a: Ready MemoryPressure\nb: Ready\nc:\n",
        ),
        (r#"{.items[0].status.conditions[?(@.type=="Ready")].status}"#, "True"),
        (r"{.items[*].status.conditions[?(@.type=='Ready')].status}", "True False"),
        (r#"{.items[*].status.conditions[?(@.type!="Ready")].type}"#, "MemoryPressure"),
        ("{.items[?(@.status.restarts>3)].metadata.name}", "a"),
        ("{.items[?(@.status.restarts<=3)].metadata.name}", "b"),
        ("{.items[?(@.status.restarts>=3)].metadata.name}", "a b"),
        ("{.items[?( @.spec.unschedulable == true )].metadata.name}", "b"),
        ("{.items[?(@.spec)].metadata.name}", "b"),
        ("{.items[?(@.metadata.name==$.items[1].metadata.name)].metadata.name}", "b"),
        ("{.nix}{.items[*].nix.nix}", ""),
        ("{.items[1].spec}", r#"{"unschedulable":true}"#),
        (r#"{"quoted \"text\" and \u00e9"}"#, "quoted \"text\" and é"),
        ("{.items[0].metadata.name  .kind}", "aList"),
        ("", ""),
        ("plain", "plain"),
    ] {
        assert_eq!(render(template), expected, "{template}");
    }
}

#[test]
fn a_path_needs_neither_braces_nor_its_first_dot() {
    for text in
        ["{.metadata.name}", ".metadata.name", "metadata.name", " $.metadata.name ", "['metadata'].name"]
    {
        let path: Path = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(path.find(&json!({"metadata": {"name": "a"}})), [&json!("a")], "{text}");
    }
}

#[test]
fn a_wrong_template_is_refused_with_the_place() {
    for (template, expected) in [
        ("{.items", "`{` is not closed by `}`, at character 8"),
        ("{range .items[*]}{.a}", "`{range}` has no `{end}`, at character 22"),
        ("{end}", "`{end}` without `{range}`"),
        ("{items}", "expected a path such as .metadata.name"),
        ("{.a[}", "expected a number, a quoted name"),
        ("{.a[x]}", "expected a number, a quoted name"),
        ("{.a[0}", "expected `]`"),
        ("{.a[0:1:0]}", "the step of a slice must be 1 or more"),
        ("{.a[?(@.b==)]}", "expected a path, a number or a quoted text"),
        ("{.a[?(@.b==1 && @.c==2)]}", "a filter has one comparison"),
        ("{'a}", "the quoted text has no end"),
        (r"{'\q'}", "unknown escape"),
        (r"{'\u12'}", "four hexadecimal digits"),
        ("{...}", "expected the name of a field"),
    ] {
        let refused = template.parse::<Template>().unwrap_err().to_string();
        assert!(refused.contains(expected), "{template}: {refused}");
    }
    for path in ["", "{.a", ".a}", ".a .b"] {
        assert!(path.parse::<Path>().is_err(), "{path}");
    }
    let deep = "{range .a}".repeat(100);
    assert!(deep.parse::<Template>().unwrap_err().to_string().contains("inside each other"));
}

#[test]
fn values_are_sorted_by_number_quantity_and_natural_text() {
    use std::cmp::Ordering::*;
    for (left, right, expected) in [
        (json!(2), json!(10), Less),
        (json!("2"), json!("10"), Less),
        (json!("900Mi"), json!("1Gi"), Less),
        (json!("500m"), json!("1"), Less),
        (json!("n2"), json!("n10"), Less),
        (json!("2026-01-02T00:00:00Z"), json!("2026-01-10T00:00:00Z"), Less),
        (json!(false), json!(true), Less),
        (json!("a"), json!("a"), Equal),
    ] {
        assert_eq!(compare(Some(&left), Some(&right)), expected, "{left} {right}");
        assert_eq!(compare(Some(&right), Some(&left)), expected.reverse(), "{right} {left}");
    }
    assert_eq!(compare(None, Some(&json!(1))), Less, "a missing value comes first");
}

mod untrusted {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_template_panics(template in r#"[{}\[\]().$@*?'"\\=<!,: a-c0-2range-]{0,40}"#) {
            if let Ok(template) = template.parse::<Template>() {
                template.render(&document());
            }
            let _ = template.parse::<Path>();
        }
    }
}

use proptest::prelude::*;

use super::*;

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[test]
fn a_selector_matches_when_every_requirement_holds() {
    let node = labels(&[("zone", "a"), ("tier", ""), ("in", "notin"), ("example.com/rack", "r1")]);
    for (text, expected) in [
        ("", true),
        (" \t", true),
        ("zone=a", true),
        ("zone==a", true),
        (" zone = a ", true),
        ("zone=b", false),
        ("zone!=a", false),
        ("zone!=b", true),
        ("absent!=b", true),
        ("absent=b", false),
        ("tier=", true),
        ("tier=,zone=a", true),
        ("zone=", false),
        ("zone in (a,b)", true),
        ("zone in(b,a)", true),
        ("zone in ( b , c )", false),
        ("tier in (x,)", true),
        ("tier in ()", true),
        ("zone in ()", false),
        ("absent in (a)", false),
        ("zone notin (a,b)", false),
        ("zone notin (c)", true),
        ("absent notin (a)", true),
        ("zone", true),
        ("absent", false),
        ("!absent", true),
        ("! zone", false),
        ("in", true),
        ("in in (notin, in)", true),
        ("in=notin", true),
        ("zone=a,!absent,tier,example.com/rack in (r1)", true),
        ("zone=a,absent", false),
    ] {
        let selector: LabelSelector = text.parse().unwrap_or_else(|error| panic!("{text:?} {error}"));
        assert_eq!(selector.matches(&node), expected, "{text:?}");
    }
}

#[test]
fn a_broken_selector_names_the_offending_part() {
    for (text, reason) in [
        ("a,", "is not a label selector: expected a label key but found the end"),
        (",a", r#"is not a label selector: expected a label key but found ",""#),
        ("a,,b", r#"is not a label selector: expected a label key but found ",""#),
        ("!", "is not a label selector: expected a label key after '!' but found the end"),
        ("!a=b", r#"is not a label selector: expected ',' or the end but found "=""#),
        (
            "a b",
            "is not a label selector: expected '=', '==', '!=', 'in' or 'notin' after the label key but found \
             \"b\"",
        ),
        ("a=b c", r#"is not a label selector: expected ',' or the end but found "c""#),
        ("a in x", r#"is not a label selector: expected '(' before the values but found "x""#),
        ("a in (x", "is not a label selector: expected ',' or ')' among the values but found the end"),
        ("a in (x y)", r#"is not a label selector: expected ',' or ')' among the values but found "y""#),
        (
            "a/b/c=x",
            r#"names the label "a/b/c": a label key must be a name or prefix/name, with one '/' at most"#,
        ),
        (
            "a=-",
            "asks for a to be \"-\": a label value must be empty, or of letters, digits, '-', '_' and '.', \
             starting and ending with a letter or digit",
        ),
        (
            "a>1",
            "names the label \"a>1\": a label key must have a name of letters, digits, '-', '_' and '.' that \
             starts and ends with a letter or digit",
        ),
    ] {
        let error = text.parse::<LabelSelector>().expect_err(text);
        assert_eq!(error.to_string(), reason, "{text:?}");
    }
}

#[test]
fn parts_and_text_make_the_same_selector() {
    let expressions = [
        Requirement::new("b", Operator::NotIn, ["x", "y"]).unwrap(),
        Requirement::new("c", Operator::Exists, []).unwrap(),
        Requirement::new("d", Operator::DoesNotExist, []).unwrap(),
    ];
    let built = LabelSelector::from_parts(&labels(&[("a", "1")]), expressions).unwrap();
    assert_eq!(built, "a=1,b notin (x,y),c,!d".parse().unwrap());
    assert_eq!(LabelSelector::from_parts(&Labels::new(), []), Ok(LabelSelector::everything()));
}

#[test]
fn operators_take_the_values_they_can_use() {
    for (operator, values, reason) in [
        (Operator::In, [].as_slice(), "must give k at least one value with In"),
        (Operator::NotIn, &[], "must give k at least one value with NotIn"),
        (Operator::Exists, &["x"], "must give k no values with Exists"),
        (Operator::DoesNotExist, &["x"], "must give k no values with DoesNotExist"),
    ] {
        let error = Requirement::new("k", operator, values.iter().copied()).expect_err(reason);
        assert_eq!(error.to_string(), reason);
        assert_eq!(operator.to_string().parse(), Ok(operator));
    }
    assert_eq!("in".parse::<Operator>(), Err(OperatorError));
}

fn any_requirement() -> impl Strategy<Value = Requirement> {
    let operator = prop_oneof![
        Just(Operator::In),
        Just(Operator::NotIn),
        Just(Operator::Exists),
        Just(Operator::DoesNotExist)
    ];
    let values = prop::collection::vec("|in|notin|[a-z]{1,3}", 1..4);
    ("([a-z]{1,3}/)?(in|notin|[a-z]{1,3})", operator, values).prop_map(|(key, operator, values)| {
        let takes_values = matches!(operator, Operator::In | Operator::NotIn);
        let values = values.iter().map(String::as_str).filter(|_| takes_values);
        Requirement::new(&key, operator, values).unwrap()
    })
}

proptest! {
    #[test]
    fn a_selector_survives_being_written_and_read(
        requirements in prop::collection::vec(any_requirement(), 0..5),
    ) {
        let selector = LabelSelector { requirements };
        prop_assert_eq!(selector.to_string().parse(), Ok(selector));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "[ab!=(), in]{0,12}|\\PC{0,12}") {
        let _ = text.parse::<LabelSelector>();
        let _ = FieldSelector::parse(&text, &["a"]);
    }
}

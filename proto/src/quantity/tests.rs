use proptest::prelude::*;

use super::*;

fn quantity(text: &str) -> Quantity {
    text.parse().unwrap_or_else(|error| panic!("{text:?} {error}"))
}

#[test]
fn a_quantity_has_one_canonical_text_in_its_family() {
    for (text, nanos, shown) in [
        ("0", 0, "0"),
        ("0Ki", 0, "0"),
        ("0e5", 0, "0"),
        ("-0", 0, "0"),
        ("500m", 500_000_000, "500m"),
        ("0.5", 500_000_000, "500m"),
        (".5", 500_000_000, "500m"),
        ("5.", 5 * NANO, "5"),
        ("+5", 5 * NANO, "5"),
        ("1.5", 1_500_000_000, "1500m"),
        ("2000m", 2 * NANO, "2"),
        ("2k", 2_000 * NANO, "2k"),
        ("2000", 2_000 * NANO, "2k"),
        ("1500", 1_500 * NANO, "1500"),
        ("1E", 1_000_000_000_000_000_000 * NANO, "1E"),
        ("1000E", 1_000_000_000_000_000_000_000 * NANO, "1000E"),
        ("1n", 1, "1n"),
        ("1u", 1_000, "1u"),
        ("16Gi", (16 << 30) * NANO, "16Gi"),
        ("100Mi", (100 << 20) * NANO, "100Mi"),
        ("1024Mi", (1 << 30) * NANO, "1Gi"),
        ("1.5Gi", (1536 << 20) * NANO, "1536Mi"),
        ("1Ei", (1 << 60) * NANO, "1Ei"),
        ("2048Ei", (1 << 71) * NANO, "2048Ei"),
        ("1Ki", 1024 * NANO, "1Ki"),
        ("0.5Ki", 512 * NANO, "512"),
        ("1.0001Ki", 1_024_102_400_000, "1024102400u"),
        ("1e3", 1_000 * NANO, "1e3"),
        ("1E3", 1_000 * NANO, "1e3"),
        ("1e+3", 1_000 * NANO, "1e3"),
        ("1e4", 10_000 * NANO, "10e3"),
        ("12e0", 12 * NANO, "12"),
        ("5e-3", 5_000_000, "5e-3"),
        ("1e21", 1_000_000_000_000_000_000_000 * NANO, "1e21"),
        ("-1.5Gi", -(1536 << 20) * NANO, "-1536Mi"),
        ("-500m", -500_000_000, "-500m"),
        ("0.0000000001", 1, "1n"),
        ("-0.1n", -1, "-1n"),
        ("1e-300", 1, "1e-9"),
        ("1.5n", 2, "2n"),
        ("0.00000000000001Ki", 1, "1n"),
        ("0.000000000000000000000000000000000000000000001Ki", 1, "1n"),
        ("000000000000000000000000000000000000000000000000001", NANO, "1"),
        ("0.10000000000000000000000000000000000000000000000000Ki", 102_400_000_000, "102400m"),
    ] {
        let quantity = quantity(text);
        assert_eq!(quantity.nanos, nanos, "{text}");
        assert_eq!(quantity.to_string(), shown, "{text}");
    }
}

#[test]
fn what_is_not_a_quantity_is_refused() {
    use QuantityError::*;
    for (text, expected) in [
        ("", Number),
        ("-", Number),
        (".", Number),
        ("m", Number),
        ("--1", Number),
        (" 1", Number),
        ("1 ", Suffix),
        ("1 Gi", Suffix),
        ("1.2.3", Suffix),
        ("1K", Suffix),
        ("1ki", Suffix),
        ("1GiB", Suffix),
        ("1e", Suffix),
        ("1e-", Suffix),
        ("1e3m", Suffix),
        ("1e1.5", Suffix),
        ("1mi", Suffix),
        ("1e30", Overflow),
        ("1e99999999999", Overflow),
        ("1e2147483647", Overflow),
        ("1000000000000E", Overflow),
        ("1000000000000Ei", Overflow),
        ("9999999999999999999999999999999999999999", Overflow),
    ] {
        assert_eq!(text.parse::<Quantity>(), Err(expected), "{text:?}");
    }
}

#[test]
fn value_and_milli_value_round_away_from_zero_and_saturate() {
    for (text, value, milli) in [
        ("0", 0, 0),
        ("1", 1, 1000),
        ("1m", 1, 1),
        ("1n", 1, 1),
        ("1500m", 2, 1500),
        ("1.0001", 2, 1001),
        ("-1n", -1, -1),
        ("-1500m", -2, -1500),
        ("1Ki", 1024, 1_024_000),
        ("8E", 8_000_000_000_000_000_000, i64::MAX),
        ("8Ei", i64::MAX, i64::MAX),
        ("-9Ei", i64::MIN, i64::MIN),
    ] {
        assert_eq!(quantity(text).value(), value, "{text}");
        assert_eq!(quantity(text).milli(), milli, "{text}");
    }
}

#[test]
fn equality_and_order_go_by_value() {
    for (a, b, expected) in [
        ("1", "1000m", Ordering::Equal),
        ("1Ki", "1024", Ordering::Equal),
        ("1e3", "1k", Ordering::Equal),
        ("1Gi", "1G", Ordering::Greater),
        ("999m", "1", Ordering::Less),
        ("-1", "0", Ordering::Less),
    ] {
        assert_eq!(quantity(a).cmp(&quantity(b)), expected, "{a} and {b}");
        assert_eq!(quantity(a) == quantity(b), expected == Ordering::Equal, "{a} and {b}");
    }
}

#[test]
fn sums_keep_the_family_and_report_overflow() {
    for (a, b, sum, difference) in [
        ("500m", "1", "1500m", "-500m"),
        ("16Gi", "2Gi", "18Gi", "14Gi"),
        ("16Gi", "1G", "18179869184", "16179869184"),
        ("0", "2Gi", "2Gi", "-2Gi"),
        ("1e3", "1k", "2e3", "0"),
    ] {
        let (a, b) = (quantity(a), quantity(b));
        assert_eq!(a.add(&b).unwrap().to_string(), sum, "{a} + {b}");
        assert_eq!(a.sub(&b).unwrap().to_string(), difference, "{a} - {b}");
        assert_eq!(a.sub(&b).unwrap().is_negative(), difference.starts_with('-'));
    }
    let huge = Quantity { nanos: i128::MAX, family: Family::Decimal };
    assert_eq!(huge.add(&quantity("1n")), Err(QuantityError::Overflow));
    let lowest = quantity("0").sub(&huge).unwrap();
    assert_eq!(lowest.sub(&quantity("1n")), Err(QuantityError::Overflow));
}

#[test]
fn constructors_agree_with_the_text() {
    for (built, text) in [
        (Quantity::whole(110), "110"),
        (Quantity::from_milli(1999), "1999m"),
        (Quantity::bytes(14236 << 20), "14236Mi"),
        (Quantity::bytes(i64::MIN), "-8Ei"),
        (Quantity::default(), "0"),
    ] {
        assert_eq!(built.to_string(), text);
        assert_eq!(built, quantity(text));
    }
}

fn any_quantity() -> impl Strategy<Value = Quantity> {
    let family = prop_oneof![Just(Family::Decimal), Just(Family::Binary), Just(Family::Exponent)];
    let round = (any::<i32>(), 0..7u32).prop_map(|(n, power)| i128::from(n) * 1024i128.pow(power) * NANO);
    let nanos = prop_oneof![-i128::MAX..=i128::MAX, any::<i64>().prop_map(i128::from), round];
    (nanos, family).prop_map(|(nanos, family)| Quantity { nanos, family })
}

proptest! {
    #[test]
    fn a_quantity_survives_being_written_and_read(quantity in any_quantity()) {
        let text = quantity.to_string();
        let read: Quantity = text.parse().unwrap();
        prop_assert_eq!(read, quantity);
        prop_assert_eq!(read.to_string(), text, "the spelling is settled");
    }

    #[test]
    fn no_text_makes_the_parser_panic(
        text in "[-+]?[0-9.]{0,50}[eEnumkKMGTPi]{0,2}[-+]?[0-9]{0,12}|\\PC{0,12}",
    ) {
        let _ = text.parse::<Quantity>();
    }
}

//! The natural order of names: a number inside of a name counts as a number, so that n2 comes before n10.

use std::cmp::Ordering;

pub(crate) fn compare(left: &str, right: &str) -> Ordering {
    let (mut a, mut b) = (left, right);
    while !a.is_empty() && !b.is_empty() {
        let (first, rest) = split_chunk(a);
        let (other, other_rest) = split_chunk(b);
        let order = match (digits(first), digits(other)) {
            // Without leading zeros, the longer number is the larger one, however long it is.
            (Some(x), Some(y)) => x.len().cmp(&y.len()).then_with(|| x.cmp(y)),
            _ => first.cmp(other),
        };
        if order.is_ne() {
            return order;
        }
        (a, b) = (rest, other_rest);
    }
    // Names that differ in leading zeros only still need an order.
    a.len().cmp(&b.len()).then_with(|| left.cmp(right))
}

/// The digits at the start, or everything before the first digit; and the rest.
fn split_chunk(text: &str) -> (&str, &str) {
    let is_number = text.starts_with(|c: char| c.is_ascii_digit());
    let end = text.find(|c: char| c.is_ascii_digit() != is_number).unwrap_or(text.len());
    text.split_at(end)
}

/// The digits of a chunk without leading zeros, if it is a number.
fn digits(chunk: &str) -> Option<&str> {
    chunk.starts_with(|c: char| c.is_ascii_digit()).then(|| chunk.trim_start_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_inside_of_names_count_as_numbers() {
        let sorted = [
            "",
            "1",
            "2",
            "10",
            "a",
            "a01",
            "a1",
            "a1b",
            "a2",
            "a10",
            "a10b2",
            "a10b10",
            "b",
            "n99999999999999999999998",
            "n99999999999999999999999",
            "n-2",
            "n-10",
        ];
        for (i, left) in sorted.iter().enumerate() {
            for (j, right) in sorted.iter().enumerate() {
                assert_eq!(compare(left, right), i.cmp(&j), "{left} {right}");
            }
        }
    }

    proptest! {
        #[test]
        fn it_is_a_total_order(a in "[a0-2-]{0,6}", b in "[a0-2-]{0,6}", c in "[a0-2-]{0,6}") {
            prop_assert_eq!(compare(&a, &b), compare(&b, &a).reverse());
            prop_assert_eq!(compare(&a, &b).is_eq(), a == b);
            if compare(&a, &b).is_le() && compare(&b, &c).is_le() {
                prop_assert!(compare(&a, &c).is_le());
            }
        }
    }
}

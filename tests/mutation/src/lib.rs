//! Nearly valid input, for tests of what decodes and parses input from outside.
//!
//! Random bytes fail at the first check. So most inputs are valid ones of a small corpus with a few changes: they reach
//! the code behind the checks. `PROPTEST_CASES=1000000 cargo test` tries more of them than [`cases`] does.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// How many inputs a test tries unless `PROPTEST_CASES` says otherwise.
const CASES: u32 = 4_000;
/// The most changes to one input.
const MAX_EDITS: usize = 6;
/// The longest input without a model.
const MAX_RANDOM: usize = 512;
/// Characters with a meaning in some format, or a trap of one.
const SPECIAL: &str =
    "0123456789+-._/,;:=!<>()[]{}'\"\\ \t\n\r\0aAeEimMnukKsTZ%*&#|~é９\u{7f}\u{301}\u{1f980}";

/// The settings of these tests.
pub fn cases() -> ProptestConfig {
    let cases =
        if std::env::var_os("PROPTEST_CASES").is_some() { ProptestConfig::default().cases } else { CASES };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// One change of a list of bytes or characters. Lengths are taken modulo what is there.
#[derive(Clone, Debug)]
enum Edit<T> {
    Replace(Index, T),
    Insert(Index, Vec<T>),
    /// Overwrites a piece with one value: numbers become the largest or smallest.
    Fill(Index, T, u8),
    Remove(Index, u8),
    /// Copies a piece to another place.
    Copy(Index, Index, u8),
    Truncate(Index),
    /// Repeats the whole input, for what is read more than once.
    Double,
}

impl<T: Clone> Edit<T> {
    fn apply(self, input: &mut Vec<T>) {
        let end = input.len();
        let piece = |at: Index, length: u8| {
            let from = at.index(end + 1);
            from..(from + usize::from(length)).min(end)
        };
        match self {
            Edit::Replace(at, value) if end > 0 => input[at.index(end)] = value,
            Edit::Replace(..) => {}
            Edit::Insert(at, values) => {
                let at = at.index(end + 1);
                input.splice(at..at, values);
            }
            Edit::Fill(at, value, length) => input[piece(at, length)].fill(value),
            Edit::Remove(at, length) => drop(input.drain(piece(at, length))),
            Edit::Copy(from, to, length) => {
                let (copied, to) = (input[piece(from, length)].to_vec(), to.index(end + 1));
                input.splice(to..to, copied);
            }
            Edit::Truncate(at) => input.truncate(at.index(end + 1)),
            Edit::Double => input.extend_from_within(..),
        }
    }
}

fn edit<T: Clone + std::fmt::Debug + 'static>(
    value: impl Strategy<Value = T> + Clone + 'static,
) -> impl Strategy<Value = Edit<T>> {
    let at = any::<Index>;
    prop_oneof![
        6 => (at(), value.clone()).prop_map(|(at, value)| Edit::Replace(at, value)),
        4 => (at(), vec(value.clone(), 1..4)).prop_map(|(at, values)| Edit::Insert(at, values)),
        3 => (at(), value, select(vec![2u8, 4, 8, 16])).prop_map(|(at, value, length)| Edit::Fill(at, value, length)),
        3 => (at(), any::<u8>()).prop_map(|(at, length)| Edit::Remove(at, length % 8 + 1)),
        2 => (at(), at(), any::<u8>()).prop_map(|(from, to, length)| Edit::Copy(from, to, length)),
        1 => at().prop_map(Edit::Truncate),
        1 => Just(Edit::Double),
    ]
}

fn near<T: Clone + std::fmt::Debug + 'static>(
    corpus: Vec<Vec<T>>,
    value: impl Strategy<Value = T> + Clone + 'static,
) -> impl Strategy<Value = Vec<T>> {
    (select(corpus), vec(edit(value), 0..=MAX_EDITS)).prop_map(|(mut input, edits)| {
        for edit in edits {
            edit.apply(&mut input);
        }
        input
    })
}

/// Bytes like those of the corpus, and some that are entirely random.
pub fn bytes(corpus: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    // Lengths and numbers are at their limits more often than by chance.
    let byte = prop_oneof![any::<u8>(), select(vec![0, 1, 0x7f, 0x80, 0xff])];
    prop_oneof![9 => near(corpus, byte), 1 => vec(any::<u8>(), 0..MAX_RANDOM)]
}

/// Texts like those of the corpus, and some that are entirely random.
pub fn texts(corpus: &[&str]) -> impl Strategy<Value = String> {
    let corpus = corpus.iter().map(|text| text.chars().collect()).collect();
    let letter = prop_oneof![4 => select(SPECIAL.chars().collect::<Vec<_>>()), 1 => any::<char>()];
    prop_oneof![
        9 => near(corpus, letter).prop_map(|letters| letters.into_iter().collect()),
        1 => any::<String>(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    #[test]
    fn inputs_are_valid_nearly_valid_and_random() {
        let mut runner = TestRunner::deterministic();
        let strategy = texts(&["valid"]);
        let inputs: Vec<String> =
            (0..500).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect();
        assert!(inputs.iter().any(|input| input == "valid"));
        assert!(inputs.iter().any(|input| input != "valid" && input.contains("val")));
        assert!(inputs.iter().any(|input| !input.contains('v')));
    }
}

//! What every engine must do. Each engine's tests run this suite on new engines.

use bytes::Bytes;

use super::{Compare, Engine, EngineError, Transaction};

fn put(key: &str, value: &'static str) -> (Vec<u8>, Bytes) {
    (key.as_bytes().to_vec(), Bytes::from_static(value.as_bytes()))
}

fn compare(key: &str, expected: Option<&'static str>) -> Compare {
    Compare {
        key: key.as_bytes().to_vec(),
        expected: expected.map(|value| Bytes::from_static(value.as_bytes())),
    }
}

fn keys(engine: &dyn Engine, from: &str, to: &str, limit: usize) -> Vec<String> {
    let pairs = engine.range(from.as_bytes(), to.as_bytes(), limit, usize::MAX).unwrap();
    pairs.into_iter().map(|(key, _)| String::from_utf8(key).unwrap()).collect()
}

/// Runs every check on engines that start empty.
pub(crate) fn check(fresh: &dyn Fn() -> Box<dyn Engine>) {
    values_are_read_back(&*fresh());
    ranges_are_ordered_and_half_open(&*fresh());
    a_failed_comparison_writes_nothing(&*fresh());
    long_values_are_kept_whole(&*fresh());
    recovering_loses_nothing(&*fresh());
}

fn values_are_read_back(engine: &dyn Engine) {
    assert_eq!(engine.get(b"a").unwrap(), None);
    let puts = vec![put("a", "1"), put("b", "2")];
    engine.transact(&Transaction { puts, ..Default::default() }).unwrap();
    assert_eq!(engine.get(b"a").unwrap().unwrap(), "1");
    let replace = Transaction {
        puts: vec![put("a", "3")],
        deletes: vec![b"b".to_vec(), b"absent".to_vec()],
        ..Default::default()
    };
    engine.transact(&replace).unwrap();
    assert_eq!(engine.get(b"a").unwrap().unwrap(), "3");
    assert_eq!(engine.get(b"b").unwrap(), None);
}

fn ranges_are_ordered_and_half_open(engine: &dyn Engine) {
    let puts = vec![put("c", ""), put("a", ""), put("b", ""), put("b\0", ""), put("bb", "")];
    engine.transact(&Transaction { puts, ..Default::default() }).unwrap();
    assert_eq!(keys(engine, "a", "c", 10), ["a", "b", "b\0", "bb"]);
    assert_eq!(keys(engine, "a\0", "d", 2), ["b", "b\0"]);
    assert_eq!(keys(engine, "x", "z", 10), Vec::<String>::new());
    let puts = ["p", "q", "r", "s"].map(|key| put(key, "1234")).to_vec();
    engine.transact(&Transaction { puts, ..Default::default() }).unwrap();
    for (bytes, expected) in [(0, 1), (4, 1), (5, 2), (12, 3), (13, 4)] {
        assert_eq!(engine.range(b"p", b"z", 10, bytes).unwrap().len(), expected, "{bytes} bytes");
    }
}

fn a_failed_comparison_writes_nothing(engine: &dyn Engine) {
    engine.transact(&Transaction { puts: vec![put("a", "1")], ..Default::default() }).unwrap();
    for wrong in [compare("a", None), compare("a", Some("2")), compare("b", Some("1"))] {
        let transaction = Transaction {
            compare: vec![compare("a", Some("1")), wrong.clone()],
            puts: vec![put("b", "2")],
            deletes: vec![b"a".to_vec()],
        };
        let refused = engine.transact(&transaction);
        assert!(matches!(refused, Err(EngineError::Conflict)), "{wrong:?}: {refused:?}");
        assert_eq!(engine.get(b"a").unwrap().unwrap(), "1");
        assert_eq!(engine.get(b"b").unwrap(), None);
    }
    let compare = vec![compare("a", Some("1")), compare("b", None)];
    engine.transact(&Transaction { compare, puts: vec![put("b", "2")], ..Default::default() }).unwrap();
    assert_eq!(engine.get(b"b").unwrap().unwrap(), "2");
}

fn long_values_are_kept_whole(engine: &dyn Engine) {
    let long = Bytes::from(vec![7; 1_500_000]);
    let one = |value: Bytes| Transaction { puts: vec![(b"k".to_vec(), value)], ..Default::default() };
    engine.transact(&one(long.clone())).unwrap();
    assert_eq!(engine.get(b"k").unwrap().unwrap(), long);
    engine.transact(&one(Bytes::from_static(b"short"))).unwrap();
    assert_eq!(engine.get(b"k").unwrap().unwrap(), "short");
    assert_eq!(keys(engine, "", "\u{7f}", 100), ["k"], "no piece of the long value is left");
}

fn recovering_loses_nothing(engine: &dyn Engine) {
    engine.transact(&Transaction { puts: vec![put("a", "1")], ..Default::default() }).unwrap();
    engine.recover().unwrap();
    assert_eq!(engine.get(b"a").unwrap().unwrap(), "1");
    engine.transact(&Transaction { puts: vec![put("a", "2")], ..Default::default() }).unwrap();
    assert_eq!(engine.get(b"a").unwrap().unwrap(), "2");
}

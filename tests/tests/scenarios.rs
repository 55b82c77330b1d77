//! The catalogue of scenarios and the tests that carry its numbers name each other.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use muster_tests::tools::repository;

#[test]
fn every_scenario_has_a_test_and_every_numbered_test_has_a_scenario() {
    let catalogue =
        fs::read_to_string(repository().join("tests/SCENARIOS.md")).expect("the catalogue can be read");
    let listed: BTreeSet<u16> = catalogue.lines().filter_map(listed_number).collect();
    let mut tested = BTreeSet::new();
    collect_tested(repository(), &mut tested);

    let untested: Vec<&u16> = listed.difference(&tested).collect();
    let unlisted: Vec<&u16> = tested.difference(&listed).collect();
    assert!(untested.is_empty(), "scenarios of tests/SCENARIOS.md that no test is named for: {untested:?}");
    assert!(
        unlisted.is_empty(),
        "numbers in names of tests that tests/SCENARIOS.md does not list: {unlisted:?}"
    );
    assert!(!listed.is_empty(), "tests/SCENARIOS.md lists scenarios as `- 001: ...`");
}

/// The number of a catalogue line `- 001: ...`.
fn listed_number(line: &str) -> Option<u16> {
    let (number, _) = line.strip_prefix("- ")?.split_once(':')?;
    number.parse().ok()
}

/// Adds the numbers in the names of all tests below a directory.
fn collect_tested(directory: &Path, tested: &mut BTreeSet<u16>) {
    for entry in fs::read_dir(directory).expect("a source directory can be read") {
        let path = entry.expect("a directory entry can be read").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_source = !name.starts_with('.') && !["target", "node_modules"].contains(&name);
        if path.is_dir() && is_source {
            collect_tested(&path, tested);
        } else if name.ends_with(".rs") {
            let source = fs::read_to_string(&path).expect("a source file can be read");
            tested.extend(source.lines().flat_map(numbers_of_test));
        }
    }
}

/// The numbers of a test declared in this line: 131 and 132 for `fn s131_s132_evictions_stop() {`.
fn numbers_of_test(line: &str) -> impl Iterator<Item = u16> {
    let line = line.trim_start();
    let name = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn ")).unwrap_or_default();
    name.split('_').map_while(scenario_number)
}

/// The number in a part of a test's name: 131 for `s131`.
fn scenario_number(part: &str) -> Option<u16> {
    let digits = part.strip_prefix('s').filter(|digits| digits.len() == 3)?;
    digits.parse().ok()
}

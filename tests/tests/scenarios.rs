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

#[test]
fn every_test_that_the_register_of_deviations_names_exists() {
    let register =
        fs::read_to_string(repository().join("tests/DEVIATIONS.md")).expect("the register can be read");
    let mut tests = BTreeSet::new();
    collect_names(repository(), &mut tests);
    let entries: Vec<&str> = register.split("\n- ").skip(1).collect();
    let ids: BTreeSet<&str> =
        entries.iter().filter_map(|entry| entry.split_once(':')).map(|(id, _)| id).collect();
    assert_eq!(ids.len(), entries.len(), "each deviation has a number of its own");
    for entry in entries {
        let (id, text) = entry.split_once(':').unwrap_or_default();
        assert!(
            id.strip_prefix('V').is_some_and(|number| number.parse::<u16>().is_ok()),
            "`{id}` is no number"
        );
        assert!(text.contains("Flag: ") || text.contains("Flag:\n"), "{id} does not say which flag turns it");
        for name in text.split("Test: `").skip(1).filter_map(|rest| rest.split('`').next()) {
            assert!(tests.contains(name), "{id} names the test {name}, which does not exist");
        }
    }
}

/// Adds the names of all functions below a directory.
fn collect_names(directory: &Path, names: &mut BTreeSet<String>) {
    for_each_source(directory, &mut |source| {
        let name = |line: &str| {
            let line = line.trim_start();
            let declared = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "))?;
            declared.split(['(', '<']).next().map(str::to_owned)
        };
        names.extend(source.lines().filter_map(name));
    });
}

/// The number of a catalogue line `- 001: ...`.
fn listed_number(line: &str) -> Option<u16> {
    let (number, _) = line.strip_prefix("- ")?.split_once(':')?;
    number.parse().ok()
}

/// Adds the numbers in the names of all tests below a directory.
fn collect_tested(directory: &Path, tested: &mut BTreeSet<u16>) {
    for_each_source(directory, &mut |source| tested.extend(source.lines().flat_map(numbers_of_test)));
}

/// Calls a function with the text of every source file below a directory.
fn for_each_source(directory: &Path, call: &mut dyn FnMut(&str)) {
    for entry in fs::read_dir(directory).expect("a source directory can be read") {
        let path = entry.expect("a directory entry can be read").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_source = !name.starts_with('.') && !["target", "node_modules"].contains(&name);
        if path.is_dir() && is_source {
            for_each_source(&path, call);
        } else if name.ends_with(".rs") {
            call(&fs::read_to_string(&path).expect("a source file can be read"));
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

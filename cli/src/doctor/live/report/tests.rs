use super::*;
use crate::doctor::forecast::{forecast, tests::defaults};
use crate::doctor::live::judgement::tests::{healthy, unreachable};
use crate::doctor::live::judgement::{effective_settings, judge};

fn report(observation: &Observation, width: usize) -> String {
    let settings = effective_settings(observation, &defaults());
    let mut findings = judge(observation, settings.as_ref());
    findings.sort_by_key(|finding| finding.level);
    text(observation, settings.as_ref().map(forecast).as_ref(), &findings, Paint::Plain, width)
}

#[test]
fn a_fleet_is_reported_within_80_columns() {
    let mut observation = healthy();
    insta::assert_snapshot!("healthy", report(&observation, 80));
    observation.controllers.push(unreachable("http://c2"));
    observation.stores[0].hello.as_mut().unwrap().version = Some("0.2.0".to_owned());
    let shown = report(&observation, 80);
    insta::assert_snapshot!("with_problems", shown);
    assert!(shown.lines().all(|line| line.len() <= 80), "{shown}");
}

#[test]
fn programs_get_the_same() {
    let observation = healthy();
    let document = as_document(&observation, None, &[]);
    assert_eq!(document["servers"][0]["component"], "store");
    assert_eq!(document["servers"][0]["leads"], true);
    assert_eq!(document["servers"][0]["disk"]["reserveBytes"], 20 << 20);
    assert_eq!(document["servers"][1]["settings"]["node-monitor-grace-period"], "40s");
    assert_eq!(document["servers"][2]["node"], "n1");
    assert_eq!(document["leader"]["identity"], "c1");
    assert_eq!(document["versions"]["0.1.0"][3], "5 agents");
    assert_eq!(document["findings"].as_array().map(Vec::len), Some(0));
}

use super::*;

const MI: u64 = 1 << 20;

fn at(seconds: u64) -> Mono {
    Mono::since_origin(Duration::from_secs(seconds))
}

fn pressure(flags: &Flags<'_>) -> PressureTracker {
    PressureTracker::new(thresholds(flags).unwrap(), Duration::from_secs(300))
}

/// That many MiB available, of 1 GiB.
fn memory(available_mi: u64) -> Observation {
    Observation::from([(
        Signal::MemoryAvailable,
        Level { available: available_mi * MI, capacity: 1024 * MI },
    )])
}

fn hard(text: &str) -> Flags<'_> {
    Flags { hard: Some(text), ..Flags::default() }
}

#[test]
fn s062_a_threshold_is_met_only_below_it() {
    for (available, expected) in [(101, false), (100, false), (99, true), (0, true)] {
        let mut pressure = pressure(&hard("memory.available<100Mi"));
        pressure.observe(&memory(available), at(0));
        let state = pressure.state(at(0));
        assert_eq!(state.conditions.memory, expected, "{available}Mi");
        assert_eq!(state.hard.len(), usize::from(expected), "{available}Mi");
    }
}

#[test]
fn percentages_are_of_the_capacity_and_each_signal_has_its_condition() {
    let none = PressureConditions::default();
    let disk = PressureConditions { disk: true, ..none };
    for (signal, expected) in [
        (Signal::MemoryAvailable, PressureConditions { memory: true, ..none }),
        (Signal::AllocatableMemoryAvailable, PressureConditions { memory: true, ..none }),
        (Signal::NodefsAvailable, disk),
        (Signal::NodefsInodesFree, disk),
        (Signal::ImagefsAvailable, disk),
        (Signal::ImagefsInodesFree, disk),
        (Signal::ContainerfsAvailable, disk),
        (Signal::ContainerfsInodesFree, disk),
        (Signal::PidAvailable, PressureConditions { pid: true, ..none }),
    ] {
        for (available, expected) in [(100, none), (99, expected)] {
            let mut pressure = pressure(&hard(&format!("{signal}<10%")));
            pressure.observe(&Observation::from([(signal, Level { available, capacity: 1000 })]), at(0));
            assert_eq!(pressure.state(at(0)).conditions, expected, "{signal} at {available}");
        }
    }
}

#[test]
fn s063_a_condition_holds_for_the_transition_period() {
    let mut pressure = pressure(&hard("memory.available<100Mi"));
    pressure.observe(&memory(50), at(0));
    pressure.observe(&memory(500), at(10));
    for (seconds, expected) in [(10, true), (299, true), (300, false), (330, false)] {
        let state = pressure.state(at(seconds));
        assert_eq!(state.conditions.memory, expected, "{seconds} s after it was last seen");
        assert!(state.hard.is_empty(), "the condition holds on, the threshold does not");
    }
    assert_eq!(pressure.state(at(10)).wake_at, Some(at(300)));
    pressure.observe(&memory(50), at(200));
    pressure.observe(&memory(500), at(210));
    assert!(pressure.state(at(499)).conditions.memory, "seen again, it starts again");
    assert!(!pressure.state(at(500)).conditions.memory);
}

#[test]
fn s064_a_soft_threshold_sets_the_condition_at_once_and_evicts_after_its_grace() {
    let flags = Flags {
        hard: Some(""),
        soft: "memory.available<200Mi",
        soft_grace: "memory.available=1m",
        ..Flags::default()
    };
    let mut pressure = pressure(&flags);
    pressure.observe(&memory(150), at(0));
    for (seconds, acts) in [(0, false), (30, false), (59, false), (60, true)] {
        pressure.observe(&memory(150), at(seconds));
        let state = pressure.state(at(seconds));
        assert!(state.conditions.memory && state.hard.is_empty());
        assert_eq!(state.soft.len(), usize::from(acts), "{seconds} s");
    }
    pressure.observe(&memory(200), at(70));
    pressure.observe(&memory(150), at(80));
    assert!(pressure.state(at(139)).soft.is_empty(), "a break starts the grace again");
    assert_eq!(pressure.state(at(80)).wake_at, Some(at(140)));
    assert_eq!(pressure.state(at(140)).soft.len(), 1);
}

#[test]
fn s065_a_threshold_stays_met_until_its_minimum_is_reclaimed() {
    let flags = Flags {
        hard: Some("memory.available<100Mi"),
        min_reclaim: "memory.available=50Mi",
        ..Flags::default()
    };
    let mut pressure = pressure(&flags);
    for (available, expected) in [(120, 0), (99, 1), (120, 1), (149, 1), (150, 0), (120, 0)] {
        pressure.observe(&memory(available), at(0));
        assert_eq!(pressure.state(at(0)).hard.len(), expected, "{available}Mi");
    }
}

#[test]
fn a_signal_that_cannot_be_read_evicts_no_pod() {
    let mut pressure = pressure(&hard("memory.available<100Mi"));
    pressure.observe(&memory(50), at(0));
    pressure.observe(&Observation::new(), at(10));
    let state = pressure.state(at(10));
    assert!(state.hard.is_empty() && state.conditions.memory);
}

#[test]
fn s068_an_invalid_threshold_is_refused_with_its_flag_and_part() {
    let soft = |soft, soft_grace| Flags { soft, soft_grace, ..Flags::default() };
    let reclaim = |min_reclaim| Flags { min_reclaim, ..Flags::default() };
    for (flags, flag, part) in [
        (hard("memory.available<0"), "--eviction-hard", "memory.available<0"),
        (hard("memory.available<-1Mi"), "--eviction-hard", "memory.available<-1Mi"),
        (hard("foo<1Mi"), "--eviction-hard", "foo<1Mi"),
        (hard("nodefs.available<150%"), "--eviction-hard", "nodefs.available<150%"),
        (hard("nodefs.available<-5%"), "--eviction-hard", "nodefs.available<-5%"),
        (hard("nodefs.available<x%"), "--eviction-hard", "nodefs.available<x%"),
        (hard("memory.available=1Mi"), "--eviction-hard", "memory.available=1Mi"),
        (hard("memory.available<1Mx"), "--eviction-hard", "memory.available<1Mx"),
        (hard("memory.available<"), "--eviction-hard", "memory.available<"),
        (hard("pid.available<1,pid.available<2"), "--eviction-hard", "pid.available<2"),
        (soft("memory.available<1Mi", ""), "--eviction-soft", "memory.available<1Mi"),
        (soft("memory.available<1Mi", "pid.available=1m"), "--eviction-soft", "memory.available<1Mi"),
        (soft("", "foo=1m"), "--eviction-soft-grace-period", "foo=1m"),
        (soft("", "pid.available=-1m"), "--eviction-soft-grace-period", "pid.available=-1m"),
        (soft("", "pid.available<1m"), "--eviction-soft-grace-period", "pid.available<1m"),
        (reclaim("foo=1Mi"), "--eviction-minimum-reclaim", "foo=1Mi"),
        (reclaim("memory.available=-1Mi"), "--eviction-minimum-reclaim", "memory.available=-1Mi"),
        (reclaim("memory.available=150%"), "--eviction-minimum-reclaim", "memory.available=150%"),
    ] {
        let error = thresholds(&flags).unwrap_err();
        assert_eq!((error.flag, error.part.as_str()), (flag, part), "{error}");
    }
}

#[test]
fn s068_0_and_100_percent_disable_a_threshold() {
    for (text, expected) in [
        ("memory.available<0%", vec![]),
        ("memory.available<100%", vec![]),
        ("", vec![]),
        ("memory.available<1Mi,nodefs.available<0%", vec!["memory.available<1Mi"]),
        (" pid.available < 7.5% ,memory.available<1Mi", vec!["memory.available<1Mi", "pid.available<7.5%"]),
    ] {
        let all: Vec<String> = thresholds(&hard(text)).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(all, expected, "{text:?}");
    }
    let soft_off = Flags { hard: Some(""), soft: "memory.available<0%", ..Flags::default() };
    assert_eq!(thresholds(&soft_off), Ok(vec![]), "a disabled threshold needs no grace period");
}

#[test]
fn the_default_set_is_replaced_as_a_whole() {
    let signals = |flags: &Flags<'_>| -> Vec<Signal> {
        thresholds(flags).unwrap().iter().map(|threshold| threshold.signal).collect()
    };
    use Signal::{ImagefsAvailable, ImagefsInodesFree, MemoryAvailable, NodefsAvailable, NodefsInodesFree};
    let all = [MemoryAvailable, NodefsAvailable, NodefsInodesFree, ImagefsAvailable, ImagefsInodesFree];
    assert_eq!(signals(&Flags::default()), all);
    assert_eq!(signals(&hard("pid.available<5%")), [Signal::PidAvailable]);
}

//! Capacity, and what reservations leave of it.

use super::*;

fn quantities(list: &[(&str, &str)]) -> Resources {
    list.iter().map(|(name, amount)| ((*name).to_owned(), amount.parse().unwrap())).collect()
}

#[test]
fn s055_pods_are_limited_by_cores_and_by_number() {
    for (cores, max_pods, pods_per_core, expected) in
        [(2, 10, 4, 8), (2, 10, 6, 10), (2, 10, 0, 10), (0, 10, 4, 0)]
    {
        let config = CapacityConfig { max_pods, pods_per_core, ..settings().capacity };
        let hardware = Some(Hardware { cores, ..Hardware::default() });
        let found = capacity::capacity(&Resources::new(), &config, &Observed { hardware, ..observed() });
        assert_eq!(found["pods"], Quantity::whole(expected), "{pods_per_core} on each of {cores}");
    }
}

#[test]
fn s056_s057_s059_reservations_and_huge_pages_are_not_allocatable() {
    let amount = |text: &str| Share::Amount(text.parse().unwrap());
    for (capacity, system, kube, reserve, expected) in [
        (
            &[("cpu", "2000m"), ("memory", "1024"), ("pods", "110")][..],
            &[("cpu", "1m"), ("memory", "1"), ("pods", "1")][..],
            &[][..],
            EvictionReserve::default(),
            &[("cpu", "1999m"), ("memory", "1023"), ("pods", "109")][..],
        ),
        (
            &[("memory", "1024"), ("hugepages-2Mi", "1025")],
            &[],
            &[],
            EvictionReserve::default(),
            &[("memory", "0"), ("hugepages-2Mi", "1025")],
        ),
        (
            &[("memory", "1024"), ("hugepages-2Mi", "1")],
            &[],
            &[],
            EvictionReserve::default(),
            &[("memory", "1023"), ("hugepages-2Mi", "1")],
        ),
        (
            &[("cpu", "4"), ("memory", "16Gi")],
            &[("cpu", "500m"), ("memory", "1Gi")],
            &[("cpu", "500m"), ("memory", "1Gi")],
            EvictionReserve { memory: Some(amount("100Mi")), storage: Some(Share::Fraction(0.1)) },
            &[("cpu", "3000m"), ("memory", "14236Mi")],
        ),
        (
            &[("memory", "1000"), ("ephemeral-storage", "1005")],
            &[("ephemeral-storage", "5")],
            &[],
            EvictionReserve { memory: Some(Share::Fraction(0.05)), storage: Some(Share::Fraction(0.1)) },
            &[("memory", "950"), ("ephemeral-storage", "900")],
        ),
        (
            &[("cpu", "1"), ("example.com/gpu", "2")],
            &[("cpu", "2")],
            &[],
            EvictionReserve::default(),
            &[("cpu", "0"), ("example.com/gpu", "2")],
        ),
    ] {
        let config = CapacityConfig {
            system_reserved: quantities(system),
            kube_reserved: quantities(kube),
            ..settings().capacity
        };
        let capacity = quantities(capacity);
        let found = capacity::allocatable(&capacity, &config, &reserve, &Devices::default());
        assert_eq!(found, quantities(expected));
    }
}

#[test]
fn s058_reservations_above_the_capacity_are_an_error() {
    let capacity = quantities(&[("cpu", "4"), ("memory", "1Gi"), ("ephemeral-storage", "10Gi")]);
    let threshold = |text: &str| EvictionReserve {
        memory: Some(Share::Amount(text.parse().unwrap())),
        ..EvictionReserve::default()
    };
    for (system, kube, reserve, expected) in [
        (&[("memory", "1Gi")][..], &[][..], EvictionReserve::default(), None),
        (&[("memory", "2Gi")], &[], EvictionReserve::default(), Some(("memory", "2Gi", "1Gi"))),
        (&[("cpu", "2")], &[("cpu", "2500m")], EvictionReserve::default(), Some(("cpu", "4500m", "4"))),
        (&[("memory", "1Gi")], &[], threshold("1Ki"), Some(("memory", "1048577Ki", "1Gi"))),
        (&[("pid", "1000")], &[], EvictionReserve::default(), None),
        (&[("pid", "1000")], &[("pid", "1")], EvictionReserve::default(), Some(("pid", "1001", "1k"))),
    ] {
        let config = CapacityConfig {
            system_reserved: quantities(system),
            kube_reserved: quantities(kube),
            ..settings().capacity
        };
        let expected = expected.map_or(Ok(()), |(resource, reserved, capacity)| {
            Err(Overreserved {
                resource: resource.to_owned(),
                reserved: reserved.parse().unwrap(),
                capacity: capacity.parse().unwrap(),
            })
        });
        assert_eq!(check_reservations(&capacity, Some(1000), &config, &reserve), expected);
    }
}

#[test]
fn a_machine_that_cannot_be_read_has_no_capacity_but_a_status() {
    let blind = Observed { hardware: None, storage_bytes: None, ..observed() };
    let before = after(&NodeStatus::default(), &observed(), 100).status;
    let computed = after(&before, &blind, 110);
    let capacity = &computed.status.capacity;
    assert_eq!((capacity["cpu"], capacity["memory"]), (Quantity::ZERO, Quantity::ZERO));
    assert_eq!(capacity["pods"], Quantity::whole(110));
    assert_eq!(
        capacity["ephemeral-storage"], before.capacity["ephemeral-storage"],
        "a capacity that cannot be read stays"
    );
    assert_eq!(computed.problems.len(), 1);
    assert_eq!(condition(&computed.status, types::READY).last_heartbeat_time, Some(at(110)));
}

#[test]
fn huge_pages_follow_the_machine_and_devices_their_plug_ins() {
    let mut with = observed();
    with.hardware.as_mut().unwrap().huge_pages =
        vec![HugePages { page_bytes: 2 << 20, count: 0 }, HugePages { page_bytes: 1 << 30, count: 2 }];
    with.devices.capacity = quantities(&[("example.com/gpu", "4")]);
    with.devices.allocatable = quantities(&[("example.com/gpu", "3"), ("example.com/ghost", "1")]);
    let first = after(&NodeStatus::default(), &with, 100).status;
    assert_eq!(first.capacity["hugepages-1Gi"], Quantity::bytes(2 << 30));
    assert_eq!(first.capacity["hugepages-2Mi"], Quantity::ZERO);
    assert_eq!(first.allocatable["memory"], Quantity::bytes(14 << 30));
    assert_eq!(first.allocatable["example.com/gpu"], Quantity::whole(3));
    assert!(!first.allocatable.contains_key("example.com/ghost"));

    let mut without = observed();
    without.devices.removed = vec!["example.com/gpu".to_owned()];
    let second = after(&first, &without, 110).status;
    assert!(!second.capacity.contains_key("hugepages-1Gi"));
    assert_eq!(second.capacity["example.com/gpu"], Quantity::ZERO, "removed devices stay listed, with 0");
    assert_eq!(second.allocatable["example.com/gpu"], Quantity::ZERO);

    let third = after(&first, &observed(), 110).status;
    assert_eq!(
        third.capacity["example.com/gpu"],
        Quantity::whole(4),
        "a resource that an administrator listed stays"
    );
}

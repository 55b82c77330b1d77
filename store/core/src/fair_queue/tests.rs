use super::*;

const MIB: usize = 1 << 20;

fn queue() -> FairQueue<String> {
    FairQueue::new(QueueLimits { requests: 100, bytes: 16 * MIB })
}

fn push(queue: &mut FairQueue<String>, caller: &str, bytes: usize) -> Result<Vec<String>, QueueFull> {
    let number = queue.lines.get(caller).map_or(0, |line| line.requests.len());
    queue.push(&caller.into(), bytes, format!("{caller}{number}"))
}

fn drain(queue: &mut FairQueue<String>) -> Vec<String> {
    std::iter::from_fn(|| queue.pop()).map(|(_, request)| request).collect()
}

#[test]
fn callers_take_turns_by_bytes() {
    let mut queue = queue();
    for _ in 0..3 {
        push(&mut queue, "big", QUANTUM).unwrap();
    }
    for _ in 0..3 {
        push(&mut queue, "half", QUANTUM / 2).unwrap();
    }
    push(&mut queue, "small", 10).unwrap();
    let order = drain(&mut queue);
    assert_eq!(order, ["big0", "half0", "half1", "small0", "big1", "half2", "big2"]);
    assert_eq!((queue.len(), queue.bytes()), (0, 0));
    assert!(queue.lines.is_empty() && queue.turns.is_empty() && queue.by_bytes.is_empty());
}

#[test]
fn a_flood_of_large_requests_delays_a_small_one_by_at_most_one_of_them() {
    let mut queue = queue();
    for _ in 0..10 {
        push(&mut queue, "flood", MIB).unwrap();
    }
    queue.pop().unwrap();
    push(&mut queue, "small", 10).unwrap();
    let order = drain(&mut queue);
    let place = order.iter().position(|request| request == "small0").unwrap();
    assert!(place <= 1, "{order:?}");
}

#[test]
fn requests_of_one_caller_stay_in_order() {
    let mut queue = queue();
    for bytes in [5, 3 * MIB, 10, MIB, 10] {
        push(&mut queue, "a", bytes).unwrap();
    }
    assert_eq!(drain(&mut queue), ["a0", "a1", "a2", "a3", "a4"]);
}

#[test]
fn a_queue_is_bounded_in_requests_and_bytes() {
    let mut alone = queue();
    for _ in 0..16 {
        push(&mut alone, "a", MIB).unwrap();
    }
    assert_eq!(push(&mut alone, "a", 1), Err(QueueFull::Bytes(16 * MIB)), "also for a caller that is alone");
    assert_eq!(alone.bytes(), 16 * MIB);
    alone.pop().unwrap();
    push(&mut alone, "a", 1).unwrap();

    let mut many = queue();
    for i in 0..100 {
        push(&mut many, &format!("c{i}-"), 1).unwrap();
    }
    assert_eq!(push(&mut many, "late", 1), Err(QueueFull::Requests(100)));
    let limit = QueueFull::Share(4).to_string();
    assert_eq!(limit, "4 bytes of requests of one caller while others wait");
}

#[test]
fn a_caller_above_its_share_gives_way_to_others() {
    let mut queue = queue();
    for _ in 0..16 {
        push(&mut queue, "flood", MIB).unwrap();
    }
    // The newest requests of the flood give way, the others stay.
    assert_eq!(push(&mut queue, "b", 2 * MIB).unwrap(), ["flood15", "flood14"]);
    assert_eq!(push(&mut queue, "flood", 1), Err(QueueFull::Share(4 * MIB)));
    assert_eq!(push(&mut queue, "b", 2 * MIB).unwrap(), ["flood13", "flood12"]);
    assert_eq!(push(&mut queue, "b", 1), Err(QueueFull::Share(4 * MIB)), "as long as the flood waits");
    for caller in ["c", "d"] {
        push(&mut queue, caller, 4 * MIB).unwrap();
    }
    // Nobody holds more than a share any more.
    assert_eq!(push(&mut queue, "e", MIB), Err(QueueFull::Bytes(16 * MIB)));
    assert_eq!(queue.bytes(), 16 * MIB);
}

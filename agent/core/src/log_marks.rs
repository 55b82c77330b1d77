//! When which part of a container's output was written.
//!
//! Containers write to their logs themselves, so their lines have no times. Instead the length of a log is noted now
//! and then: what lies between two marks was written between their times.

use jiff::Timestamp;

/// With more marks, every second one of the older half goes: the times of old lines become coarser.
const MAX_MARKS: usize = 1024;

/// The lengths that one log had, and when.
#[derive(Clone, Debug, Default)]
pub struct LogMarks {
    /// Ascending in both.
    marks: Vec<(Timestamp, u64)>,
}

impl LogMarks {
    /// The log has this length now. It is noted if the log has grown.
    pub fn note(&mut self, now: Timestamp, length: u64) {
        if let Some((_, known)) = self.marks.last()
            && *known >= length
        {
            return;
        }
        if self.marks.len() >= MAX_MARKS {
            let mut number = 0;
            self.marks.retain(|_| {
                number += 1;
                number > MAX_MARKS / 2 || number % 2 == 1
            });
        }
        // A clock that was set back must not break the order.
        let now = self.marks.last().map_or(now, |(last, _)| now.max(*last));
        self.marks.push((now, length));
    }

    /// The place behind everything that is known to be older than that time.
    pub fn place_at(&self, time: Timestamp) -> u64 {
        let older = self.marks.partition_point(|(at, _)| *at <= time);
        older.checked_sub(1).map_or(0, |last| self.marks[last].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn what_was_written_before_a_time_is_left_out_and_nothing_else() {
        let mut marks = LogMarks::default();
        for (second, length) in [(10, 0), (11, 50), (12, 50), (15, 80), (14, 90)] {
            marks.note(at(second), length);
        }
        for (second, expected) in [(0, 0), (10, 0), (11, 50), (14, 50), (15, 90), (99, 90)] {
            assert_eq!(marks.place_at(at(second)), expected, "at {second}");
        }
        assert_eq!(LogMarks::default().place_at(at(5)), 0, "what has no mark may be newer");
    }

    #[test]
    fn a_log_that_grows_for_ever_has_a_bounded_number_of_marks() {
        let mut marks = LogMarks::default();
        for second in 0..100_000 {
            marks.note(at(second), second.unsigned_abs() * 10 + 10);
        }
        assert!(marks.marks.len() <= MAX_MARKS);
        let place = marks.place_at(at(99_900));
        assert!((900_000..=999_010).contains(&place), "recent lines keep their times: {place}");
        for second in [1, 500, 50_000, 99_999] {
            assert!(
                marks.place_at(at(second)) <= second.unsigned_abs() * 10 + 10,
                "never too much is left out"
            );
        }
    }
}

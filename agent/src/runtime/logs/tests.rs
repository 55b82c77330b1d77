use std::io::Write;

use super::*;

struct Log {
    _dir: tempfile::TempDir,
    files: Files,
    log: ContainerLog,
    writer: File,
}

impl Log {
    fn new() -> Log {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::beside(&dir.path().join("0.order"));
        let writer = open(&files.log()).unwrap();
        Log { log: ContainerLog::new(files.clone()), _dir: dir, files, writer }
    }

    fn write(&mut self, text: &str) {
        self.writer.write_all(text.as_bytes()).unwrap();
    }

    fn check(&self, max_bytes: u64, max_files: u32, second: i64) {
        self.log.check(LogLimits { max_bytes, max_files }, at(second)).unwrap();
    }

    /// All that can be read from a place on, in small parts, and what was skipped.
    fn read_from(&self, mut from: u64) -> (String, u64) {
        let (mut text, mut skipped) = (Vec::new(), 0);
        loop {
            let part = self.log.read(from, 7).unwrap();
            skipped += part.skipped;
            from = part.end;
            if part.data.is_empty() {
                return (String::from_utf8(text).unwrap(), skipped);
            }
            text.extend(part.data);
        }
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn places_in_the_output_stay_when_it_is_rotated_under_its_writer() {
    let mut log = Log::new();
    let mut all = String::new();
    for round in 0..5 {
        let text: String = (0..900).map(|line| format!("round {round} line {line}\n")).collect();
        log.write(&text);
        all += &text;
        log.check(8_000, 100, round);
        assert_eq!(log.read_from(0), (all.clone(), 0), "after round {round}");
    }
    assert!(log.files.rotated_logs().unwrap().len() > 2);
    let middle = all.len() / 2;
    assert_eq!(log.read_from(middle as u64).0, all[middle..]);

    // A later agent knows the places from the names of the files.
    let later = ContainerLog::new(log.files.clone());
    assert_eq!(later.end().unwrap(), all.len() as u64);
    assert_eq!(later.read(middle as u64, 20).unwrap().data, all.as_bytes()[middle..middle + 20]);
}

#[test]
fn the_files_of_a_log_are_limited_in_number_and_size() {
    let mut log = Log::new();
    for round in 0..40 {
        log.write(&"x".repeat(30_000));
        log.check(10_000, 3, round);
        let rotated = log.files.rotated_logs().unwrap();
        assert!(rotated.len() <= 2, "{rotated:?}");
        let sizes: u64 = rotated.iter().map(|(_, path)| fs::metadata(path).unwrap().len()).sum();
        assert!(sizes <= 20_000 && log.log.length().unwrap().unwrap() <= 10_000, "{sizes}");
    }
    let part = log.log.read(5, 10).unwrap();
    assert_eq!((part.data.len(), part.end - 10 - part.skipped), (10, 5), "the reader learns what it missed");
    assert!(part.skipped > 1_000_000);
    assert_eq!(log.log.end().unwrap(), 40 * 30_000, "no byte is counted twice");
}

#[test]
fn a_log_with_a_hole_costs_no_more_than_it_may() {
    let mut log = Log::new();
    log.writer.set_len(1 << 40).unwrap();
    log.write("the end\n");
    log.check(10_000, 3, 1);
    let sizes: u64 =
        log.files.rotated_logs().unwrap().iter().map(|(_, path)| fs::metadata(path).unwrap().len()).sum();
    assert!(sizes <= 30_000, "{sizes}");
    let last = log.log.last_lines(1).unwrap();
    assert!(log.read_from(last).0.ends_with("the end\n"));
}

#[test]
fn the_last_lines_are_found_across_files() {
    let mut log = Log::new();
    assert_eq!(log.log.last_lines(3).unwrap(), 0, "an empty log");
    for line in 0..3000 {
        log.write(&format!("line {line}\n"));
        if line % 500 == 499 {
            log.check(4_000, 100, line);
        }
    }
    for (lines, expected) in [(1, "line 2999\n"), (2, "line 2998\nline 2999\n"), (0, "")] {
        assert_eq!(log.read_from(log.log.last_lines(lines).unwrap()).0, expected);
    }
    let many = log.read_from(log.log.last_lines(2900).unwrap()).0;
    assert!(many.starts_with("line 100\n") && many.ends_with("line 2999\n"));
    assert_eq!(log.log.last_lines(5000).unwrap(), 0);
    log.write("no end");
    assert_eq!(log.read_from(log.log.last_lines(2).unwrap()).0, "line 2999\nno end");
}

#[test]
fn lines_before_a_time_are_left_out_and_no_line_is_broken() {
    let mut log = Log::new();
    log.write("old 1\nold 2\nhalf");
    log.check(1 << 20, 5, 10);
    log.write(" a line\nnew\n");
    log.check(1 << 20, 5, 20);
    for (second, expected) in
        [(5, "old 1\nold 2\nhalf a line\nnew\n"), (10, "new\n"), (15, "new\n"), (20, ""), (30, "")]
    {
        assert_eq!(log.read_from(log.log.since(at(second)).unwrap()).0, expected, "since {second}");
    }
}

#[test]
fn a_log_that_its_container_shortens_can_be_read_on() {
    let mut log = Log::new();
    log.write("something long\n");
    let end = log.log.end().unwrap();
    log.writer.set_len(0).unwrap();
    let part = log.log.read(end, 10).unwrap();
    assert!(part.data.is_empty() && part.end < end);
    log.write("more\n");
    assert_eq!(log.read_from(part.end).0, "more\n");
    assert_eq!(tail(&log.files.log(), 3).unwrap(), b"re\n");
}

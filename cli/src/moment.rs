//! Moments as people give them: `tuesday 14:00`, `yesterday 9:30`, `14:00`, `2h ago`, or a timestamp.

use jiff::civil::{Date, Time, Weekday};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use muster_rpc::config::parse_duration;

const DAYS: [(&str, Weekday); 7] = [
    ("monday", Weekday::Monday),
    ("tuesday", Weekday::Tuesday),
    ("wednesday", Weekday::Wednesday),
    ("thursday", Weekday::Thursday),
    ("friday", Weekday::Friday),
    ("saturday", Weekday::Saturday),
    ("sunday", Weekday::Sunday),
];

/// A moment before now. A time of day without a day is the last time that the clock showed it; a day of the week is the
/// last one that has such a moment.
pub(crate) fn parse(text: &str, now: Timestamp, zone: &TimeZone) -> Result<Timestamp, String> {
    let text = text.trim().to_lowercase();
    let invalid = || {
        format!(
            "{text:?} is no time: give one such as 14:00, \"yesterday 14:00\", \"tuesday 14:00\", \"2h ago\", \
             \"2026-05-04 14:00\" or 2026-05-04T14:00:00Z"
        )
    };
    if text == "now" {
        return Ok(now);
    }
    if let Ok(moment) = text.to_uppercase().parse::<Timestamp>() {
        return Ok(moment);
    }
    if let Some(age) = text.strip_suffix("ago") {
        let age = parse_duration(age.trim()).map_err(|error| error.to_string())?;
        return now.checked_sub(age).map_err(|_| invalid());
    }
    let here = now.to_zoned(zone.clone());
    let (day, time) = match text.split_once(' ') {
        Some((day, time)) => (Some(day), time.trim()),
        None => (None, text.as_str()),
    };
    let time = time_of_day(time).ok_or_else(invalid)?;
    let at = |date: Date| date.to_datetime(time).to_zoned(zone.clone()).map_err(|error| error.to_string());
    let today = here.date();
    let before =
        |days: i64| today.checked_sub(jiff::Span::new().days(days)).map_err(|error| error.to_string());
    let moment: Zoned = match day {
        None => {
            let moment = at(today)?;
            if moment.timestamp() <= now { moment } else { at(before(1)?)? }
        }
        Some("today") => at(today)?,
        Some("yesterday") => at(before(1)?)?,
        Some(day) => match weekday(day) {
            Some(weekday) => {
                let days = i64::from(today.weekday().since(weekday));
                let moment = at(before(days)?)?;
                if moment.timestamp() <= now { moment } else { at(before(days + 7)?)? }
            }
            None => at(day.parse::<Date>().map_err(|_| invalid())?)?,
        },
    };
    Ok(moment.timestamp())
}

/// `tuesday`, or at least its first three letters.
fn weekday(text: &str) -> Option<Weekday> {
    DAYS.iter().find(|(name, _)| text.len() >= 3 && name.starts_with(text)).map(|(_, day)| *day)
}

/// `14:00` or `14:00:30`.
fn time_of_day(text: &str) -> Option<Time> {
    let parts: Vec<i8> = text.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    match parts[..] {
        [hour, minute] => Time::new(hour, minute, 0, 0).ok(),
        [hour, minute, second] => Time::new(hour, minute, second, 0).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_read_as_people_say_it() {
        // A Thursday.
        let now: Timestamp = "2026-11-19T12:30:00Z".parse().unwrap();
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        for (text, expected) in [
            ("14:00", Ok("2026-11-19T12:00:00Z")),
            ("14:31", Ok("2026-11-18T12:31:00Z")),
            ("9:05:30", Ok("2026-11-19T07:05:30Z")),
            ("yesterday 14:00", Ok("2026-11-18T12:00:00Z")),
            ("Tuesday 14:00", Ok("2026-11-17T12:00:00Z")),
            ("tue 14:00", Ok("2026-11-17T12:00:00Z")),
            ("thursday 14:00", Ok("2026-11-19T12:00:00Z")),
            ("thursday 15:00", Ok("2026-11-12T13:00:00Z")),
            ("friday 1:00", Ok("2026-11-12T23:00:00Z")),
            ("2026-05-04 14:00", Ok("2026-05-04T12:00:00Z")),
            ("2026-05-04T14:00:00Z", Ok("2026-05-04T14:00:00Z")),
            ("2h ago", Ok("2026-11-19T10:30:00Z")),
            ("now", Ok("2026-11-19T12:30:00Z")),
            ("soon", Err("is no time")),
            ("25:00", Err("is no time")),
            ("t 14:00", Err("is no time")),
            ("two hours ago", Err("duration")),
        ] {
            match (parse(text, now, &zone), expected) {
                (Ok(moment), Ok(expected)) => assert_eq!(moment.to_string(), expected, "{text}"),
                (Err(error), Err(expected)) => assert!(error.contains(expected), "{text}: {error}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
    }
}

//! Conversions between messages of the schema and records.
//!
//! Converting a message validates all that can be checked on the record alone and reports every violation at once.
//! Converting a record cannot fail, and gives a message that converts back to the same record. Both destructure
//! messages field by field, so that a new field of the schema does not compile until it is handled here.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;

use crate::invalid::{Check, Path};
use crate::label::check_label_key;
use crate::name::Name;
use crate::quantity::{Quantity, Resources};

mod affinity;
mod budget;
mod certificate_request;
mod container;
mod drain;
mod event;
mod join_token;
mod lease;
mod meta;
mod node;
mod pod;
mod priority_class;
mod revocation;
mod security;
mod selector;
#[cfg(test)]
mod testing;

/// A timestamp, with nanosecond precision; absent stays absent.
fn time_in(check: &mut Check, path: &Path<'_>, time: Option<prost_types::Timestamp>) -> Option<Timestamp> {
    let prost_types::Timestamp { seconds, nanos } = time?;
    if !(0..=999_999_999).contains(&nanos) {
        check.fail(path, "must have nanos from 0 to 999999999");
        return None;
    }
    let moment = Timestamp::new(seconds, nanos);
    check.field(path, moment.map_err(|_| "must lie between the years -9999 and 9999"))
}

/// A name that may be empty, which is none.
fn name_in(check: &mut Check, path: &Path<'_>, text: &str) -> Option<Name> {
    if text.is_empty() { None } else { check.field(path, text.parse()) }
}

fn time_out(time: Option<Timestamp>) -> Option<prost_types::Timestamp> {
    time.map(|time| {
        let (seconds, nanos) = (time.as_second(), time.subsec_nanosecond());
        // The schema counts nanoseconds forward also before 1970.
        if nanos < 0 {
            prost_types::Timestamp { seconds: seconds - 1, nanos: nanos + 1_000_000_000 }
        } else {
            prost_types::Timestamp { seconds, nanos }
        }
    })
}

/// Quantities by resource name; none may be negative.
fn resources_in(check: &mut Check, path: &Path<'_>, amounts: BTreeMap<String, String>) -> Resources {
    let mut resources = Resources::new();
    for (name, amount) in amounts {
        let path = path.entry(&name);
        check.field(&path, check_label_key(&name).map_err(|error| format!("the key {error}")));
        let Some(amount) = check.field(&path, amount.parse::<Quantity>()) else {
            continue;
        };
        check.ensure(&path, !amount.is_negative(), "must not be negative");
        if name == "pods" {
            check.ensure(&path, Quantity::whole(amount.value()) == amount, "must be a whole number");
        }
        resources.insert(name, amount);
    }
    resources
}

fn resources_out(resources: Resources) -> BTreeMap<String, String> {
    resources.into_iter().map(|(name, amount)| (name, amount.to_string())).collect()
}

fn address_in(check: &mut Check, path: &Path<'_>, text: &str) -> Option<IpAddr> {
    check.field(path, text.parse().map_err(|_| "must be an IPv4 or IPv6 address"))
}

/// A list with at most one element per IP family, whose first element is also in a single field.
///
/// If the two differ, the single field wins and is the whole list: old clients only know that field.
fn one_per_family<T: PartialEq>(
    check: &mut Check,
    (single_path, single): (&Path<'_>, &str),
    (list_path, list): (&Path<'_>, &[String]),
    parse: impl Fn(&mut Check, &Path<'_>, &str) -> Option<T>,
    is_ipv4: impl Fn(&T) -> bool,
) -> Vec<T> {
    let read = |text: &str| parse(&mut Check::new(), &Path::ROOT, text);
    let agrees =
        |first: &String| first == single || read(single).is_some_and(|single| read(first) == Some(single));
    let overruled = !single.is_empty() && !list.first().is_some_and(agrees);
    if overruled {
        return parse(check, single_path, single).into_iter().collect();
    }
    check.ensure(list_path, list.len() <= 2, "must be two at most, one IPv4 and one IPv6");
    let parsed = check.each(list_path, list, |check, path, text| parse(check, path, text));
    if let [first, second] = parsed.as_slice() {
        let differ = is_ipv4(first) != is_ipv4(second);
        check.ensure(&list_path.index(1), differ, "must be of the other IP family than the first");
    }
    parsed
}

/// `None` for a message that equals its default.
fn unless_default<M: Default + PartialEq>(message: M) -> Option<M> {
    (message != M::default()).then_some(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_go_out_as_they_came_in_and_stay_in_range() {
        for (seconds, nanos, expected) in [
            (0, 0, Ok("1970-01-01T00:00:00Z")),
            (1, 1, Ok("1970-01-01T00:00:01.000000001Z")),
            (-1, 500_000_000, Ok("1969-12-31T23:59:59.5Z")),
            (-1, 0, Ok("1969-12-31T23:59:59Z")),
            (253_402_207_200, 999_999_999, Ok("9999-12-30T22:00:00.999999999Z")),
            (253_402_207_201, 0, Err("t: must lie between the years -9999 and 9999")),
            (i64::MAX, 0, Err("t: must lie between the years -9999 and 9999")),
            (i64::MIN, 0, Err("t: must lie between the years -9999 and 9999")),
            (0, -1, Err("t: must have nanos from 0 to 999999999")),
            (0, 1_000_000_000, Err("t: must have nanos from 0 to 999999999")),
        ] {
            let given = prost_types::Timestamp { seconds, nanos };
            let mut check = Check::new();
            let time = time_in(&mut check, &Path::ROOT.key("t"), Some(given));
            let found = check.finish(()).map(|()| time.map(|time| time.to_string()).unwrap_or_default());
            assert_eq!(
                found.map_err(|error| error.to_string()),
                expected.map(str::to_owned).map_err(str::to_owned)
            );
            if expected.is_ok() {
                assert_eq!(time_out(time), Some(given));
            }
        }
    }
}

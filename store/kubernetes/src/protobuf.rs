//! Bodies in Kubernetes' Protobuf encoding, which its Go clients send, as the JSON of the same object. Pure.
//!
//! The numbers of the fields are in `protobuf/fields.txt`. Fields that are not there are skipped.

use std::collections::HashMap;
use std::sync::OnceLock;

use jiff::Timestamp;
use serde_json::{Map, Value};

/// The first bytes of every body.
const MAGIC: &[u8] = b"k8s\0";
/// How deep messages may be in each other; a pod has about ten levels.
const MAX_DEPTH: usize = 32;

/// Why bytes are not an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Undecodable(pub(crate) String);

fn wrong(what: impl Into<String>) -> Undecodable {
    Undecodable(what.into())
}

/// The type of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Text,
    Int,
    Bool,
    Bytes,
    Double,
    Time,
    MicroTime,
    Quantity,
    IntOrText,
    Message(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Many {
    One,
    List,
    Map,
}

#[derive(Clone, Copy, Debug)]
struct Field {
    /// `-` for a message whose fields are in the outer object.
    name: &'static str,
    many: Many,
    value: Type,
}

type Messages = HashMap<&'static str, HashMap<u64, Field>>;

fn messages() -> &'static Messages {
    static MESSAGES: OnceLock<Messages> = OnceLock::new();
    MESSAGES.get_or_init(|| parse_table(include_str!("protobuf/fields.txt")))
}

fn parse_table(text: &'static str) -> Messages {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let message = |line: &'static str| {
        let (name, fields) = line.split_once(':')?;
        Some((name, fields.split(',').filter_map(parse_field).collect()))
    };
    lines.filter_map(message).collect()
}

fn parse_field(text: &'static str) -> Option<(u64, Field)> {
    let words: Vec<&'static str> = text.split_whitespace().collect();
    let (number, name, many, kind) = match words[..] {
        [number, name, "list", kind] => (number, name, Many::List, kind),
        [number, name, "map", kind] => (number, name, Many::Map, kind),
        [number, name, kind] => (number, name, Many::One, kind),
        _ => return None,
    };
    let value = match kind {
        "string" => Type::Text,
        "int" => Type::Int,
        "bool" => Type::Bool,
        "bytes" => Type::Bytes,
        "double" => Type::Double,
        "time" => Type::Time,
        "microTime" => Type::MicroTime,
        "quantity" => Type::Quantity,
        "intOrString" => Type::IntOrText,
        message => Type::Message(message),
    };
    Some((number.parse().ok()?, Field { name, many, value }))
}

/// The object of a body, with `kind` and `apiVersion`.
pub(crate) fn decode(body: &[u8]) -> Result<Map<String, Value>, Undecodable> {
    let envelope = body
        .strip_prefix(MAGIC)
        .ok_or_else(|| wrong("it does not begin with the four bytes of Kubernetes' encoding"))?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for_each_field(envelope, |number, value| {
        match (number, value) {
            (1, Wire::Bytes(meta)) => for_each_field(meta, |number, value| {
                match (number, value) {
                    (1, Wire::Bytes(bytes)) => api_version = text(bytes)?,
                    (2, Wire::Bytes(bytes)) => kind = text(bytes)?,
                    _ => {}
                }
                Ok(())
            })?,
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
        Ok(())
    })?;
    let message = message_of(&api_version, &kind).ok_or_else(|| {
        wrong(format!("{kind} of {api_version} cannot be read from Protobuf: send it as JSON"))
    })?;
    let mut object = decode_message(message, raw, 0)?;
    object.insert("kind".to_owned(), kind.into());
    object.insert("apiVersion".to_owned(), api_version.into());
    Ok(object)
}

fn message_of(api_version: &str, kind: &str) -> Option<&'static str> {
    let package = match (api_version.split('/').next().unwrap_or_default(), kind) {
        (_, "DeleteOptions") => "meta",
        ("v1", _) => "core",
        ("coordination.k8s.io", _) => "coordination",
        ("events.k8s.io", _) => "events",
        ("policy", _) => "policy",
        ("authorization.k8s.io", _) => "authz",
        ("authentication.k8s.io", _) => "authn",
        _ => return None,
    };
    let name = format!("{package}.{kind}");
    messages().keys().find(|known| **known == name).copied()
}

/// A value as it is on the wire.
enum Wire<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    Fixed64(u64),
    Fixed32(u32),
}

fn for_each_field<'a>(
    mut bytes: &'a [u8],
    mut each: impl FnMut(u64, Wire<'a>) -> Result<(), Undecodable>,
) -> Result<(), Undecodable> {
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let value = match key & 7 {
            0 => Wire::Varint(varint(&mut bytes)?),
            1 => Wire::Fixed64(u64::from_le_bytes(array(take(&mut bytes, 8)?))),
            2 => {
                let length =
                    usize::try_from(varint(&mut bytes)?).map_err(|_| wrong("a length is too large"))?;
                Wire::Bytes(take(&mut bytes, length)?)
            }
            5 => Wire::Fixed32(u32::from_le_bytes(array(take(&mut bytes, 4)?))),
            other => return Err(wrong(format!("there is no wire type {other}"))),
        };
        each(key >> 3, value)?;
    }
    Ok(())
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], Undecodable> {
    let (taken, rest) = bytes.split_at_checked(length).ok_or_else(|| wrong("it ends within a field"))?;
    *bytes = rest;
    Ok(taken)
}

fn varint(bytes: &mut &[u8]) -> Result<u64, Undecodable> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(wrong("a number is too long"))
}

fn text(bytes: &[u8]) -> Result<String, Undecodable> {
    String::from_utf8(bytes.to_vec()).map_err(|_| wrong("a text is not UTF-8"))
}

fn decode_message(name: &'static str, bytes: &[u8], depth: usize) -> Result<Map<String, Value>, Undecodable> {
    if depth > MAX_DEPTH {
        return Err(wrong("messages are too deep in each other"));
    }
    let fields = messages().get(name).ok_or_else(|| wrong(format!("there is no message {name}")))?;
    let mut object = Map::new();
    for_each_field(bytes, |number, value| {
        let Some(field) = fields.get(&number) else { return Ok(()) };
        match field.many {
            Many::One if field.name == "-" => {
                if let (Type::Message(inner), Wire::Bytes(bytes)) = (field.value, value) {
                    object.extend(decode_message(inner, bytes, depth + 1)?);
                }
            }
            Many::One => {
                let value = decode_value(field.value, &value, depth)?;
                object.insert(field.name.to_owned(), value);
            }
            Many::List => {
                let value = decode_value(field.value, &value, depth)?;
                let list = object.entry(field.name).or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(list) = list {
                    list.push(value);
                }
            }
            Many::Map => {
                let Wire::Bytes(entry) = value else {
                    return Err(wrong("an entry of a map is not a message"));
                };
                let (key, value) = decode_entry(field.value, entry, depth)?;
                let map = object.entry(field.name).or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(map) = map {
                    map.insert(key, value);
                }
            }
        }
        Ok(())
    })?;
    // The encoding writes empty texts, too, which stand for nothing.
    object.retain(|_, value| value.as_str() != Some(""));
    Ok(object)
}

fn decode_entry(kind: Type, entry: &[u8], depth: usize) -> Result<(String, Value), Undecodable> {
    let (mut key, mut value) = (String::new(), None);
    for_each_field(entry, |number, found| {
        match (number, &found) {
            (1, Wire::Bytes(bytes)) => key = text(bytes)?,
            (2, found) => value = Some(decode_value(kind, found, depth)?),
            _ => {}
        }
        Ok(())
    })?;
    Ok((key, value.unwrap_or_else(|| if kind == Type::Text { "".into() } else { Value::Null })))
}

fn decode_value(kind: Type, value: &Wire<'_>, depth: usize) -> Result<Value, Undecodable> {
    Ok(match (kind, value) {
        (Type::Text, Wire::Bytes(bytes)) => text(bytes)?.into(),
        (Type::Int, Wire::Varint(number)) => number.cast_signed().into(),
        (Type::Bool, Wire::Varint(number)) => (*number != 0).into(),
        (Type::Double, Wire::Fixed64(bits)) => f64::from_bits(*bits).into(),
        (Type::Double, Wire::Fixed32(bits)) => f64::from(f32::from_bits(*bits)).into(),
        (Type::Bytes, Wire::Bytes(bytes)) => Value::Array(bytes.iter().map(|byte| (*byte).into()).collect()),
        (Type::Time | Type::MicroTime, Wire::Bytes(bytes)) => decode_time(kind, bytes)?,
        (Type::Quantity, Wire::Bytes(bytes)) => {
            let mut quantity = String::new();
            for_each_field(bytes, |number, value| {
                if let (1, Wire::Bytes(bytes)) = (number, value) {
                    quantity = text(bytes)?;
                }
                Ok(())
            })?;
            quantity.into()
        }
        (Type::IntOrText, Wire::Bytes(bytes)) => decode_int_or_text(bytes)?,
        (Type::Message(name), Wire::Bytes(bytes)) => Value::Object(decode_message(name, bytes, depth + 1)?),
        _ => return Err(wrong("a field has another type than expected")),
    })
}

fn decode_time(kind: Type, bytes: &[u8]) -> Result<Value, Undecodable> {
    let (mut seconds, mut nanos) = (0, 0);
    for_each_field(bytes, |number, value| {
        match (number, value) {
            (1, Wire::Varint(value)) => seconds = value.cast_signed(),
            (2, Wire::Varint(value)) => nanos = value.cast_signed(),
            _ => {}
        }
        Ok(())
    })?;
    // An unset time is sent as an empty message; the year 1 is what Go has for it.
    if bytes.is_empty() || seconds <= -62_135_596_800 {
        return Ok(Value::Null);
    }
    let nanos = i32::try_from(nanos).map_err(|_| wrong("a time has too many nanoseconds"))?;
    let time = Timestamp::new(seconds, if kind == Type::Time { 0 } else { nanos });
    let time = time.map_err(|_| wrong("a time is out of range"))?;
    Ok(if kind == Type::Time { time.to_string() } else { format!("{time:.6}") }.into())
}

fn decode_int_or_text(bytes: &[u8]) -> Result<Value, Undecodable> {
    let (mut is_text, mut number, mut found) = (false, 0, String::new());
    for_each_field(bytes, |field, value| {
        match (field, value) {
            (1, Wire::Varint(kind)) => is_text = kind == 1,
            (2, Wire::Varint(value)) => number = value.cast_signed(),
            (3, Wire::Bytes(bytes)) => found = text(bytes)?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(if is_text { found.into() } else { number.into() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let length = u8::try_from(bytes.len()).expect("a short field");
        [&[number << 3 | 2, length], bytes].concat()
    }

    fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
        [MAGIC, &field(1, &meta), &field(2, raw), &[0x1a, 0, 0x22, 0]].concat()
    }

    #[test]
    fn a_lease_is_read_as_its_json() {
        let time = [vec![0x08], vec![0x84, 0x07], vec![0x10], vec![0xc0, 0xc4, 0x07]].concat();
        let spec = [field(1, b"h"), vec![0x10, 15], field(4, &time), vec![0x28, 0]].concat();
        let labels = [field(1, b"k"), field(2, b"v")].concat();
        let metadata =
            [field(1, b"l"), field(2, b""), field(3, b"d"), field(8, b""), field(11, &labels)].concat();
        let raw = [field(1, &metadata), field(2, &spec)].concat();
        assert_eq!(
            decode(&body("coordination.k8s.io/v1", "Lease", &raw)).map(Value::Object),
            Ok(json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": "l", "namespace": "d", "labels": {"k": "v"}, "creationTimestamp": null},
                "spec": {"holderIdentity": "h", "leaseDurationSeconds": 15, "leaseTransitions": 0,
                    "renewTime": "1970-01-01T00:15:00.000123Z"}}))
        );
    }

    #[test]
    fn options_of_a_deletion_may_be_empty() {
        let found = decode(&body("v1", "DeleteOptions", b"")).expect("readable");
        assert_eq!(Value::Object(found), json!({"apiVersion": "v1", "kind": "DeleteOptions"}));
        let raw = [vec![0x08, 0], field(2, &field(1, b"u")), field(5, b"All")].concat();
        let found = decode(&body("policy/v1", "DeleteOptions", &raw)).expect("readable");
        assert_eq!(found["gracePeriodSeconds"], 0);
        assert_eq!((&found["preconditions"], &found["dryRun"]), (&json!({"uid": "u"}), &json!(["All"])));
    }

    #[test]
    fn a_number_may_be_negative_and_a_bound_a_percentage() {
        let minus_one = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        let raw = [&[0x08][..], &minus_one].concat();
        assert_eq!(decode(&body("v1", "DeleteOptions", &raw)).expect("readable")["gracePeriodSeconds"], -1);
        let percent = [vec![0x08, 1, 0x10, 0], field(3, b"20%")].concat();
        let spec = field(1, &percent);
        let budget = decode(&body("policy/v1", "PodDisruptionBudget", &field(2, &spec))).expect("readable");
        assert_eq!(budget["spec"], json!({"minAvailable": "20%"}));
    }

    #[test]
    fn every_type_of_the_table_is_in_the_table() {
        for (name, fields) in messages() {
            for field in fields.values() {
                if let Type::Message(inner) = field.value {
                    assert!(messages().contains_key(inner), "{name}.{}: {inner}", field.name);
                }
            }
        }
    }

    #[test]
    fn what_is_not_an_object_is_refused() {
        for bytes in
            [&b""[..], b"{}", b"k8s", b"k8s\0\xff", b"k8s\0\x0a\x7f", &body("apps/v1", "Deployment", b"")]
        {
            assert!(decode(bytes).is_err(), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(raw in proptest::collection::vec(any::<u8>(), 0..100), cut in 0usize..150) {
            let whole = body("v1", "Pod", &raw);
            let _ = decode(&whole[..cut.min(whole.len())]);
        }
    }
}

//! Checks that a request to a port of this machine is not made by a web page of another site.
//!
//! A page in a browser on this machine can reach loopback addresses, too. So a request must name this machine as its
//! host, which a page of another name cannot make the browser do, and come from no other origin.

use std::net::IpAddr;

use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName};

/// Checks that a request names this machine as its host, and comes from no other origin.
pub(crate) fn check_origin(headers: &HeaderMap) -> Result<(), String> {
    let host =
        single(headers, &HOST)?.ok_or("the request has no Host header: name this machine, as localhost")?;
    let authority = host.parse::<Authority>().ok().filter(is_loopback);
    let authority = authority
        .ok_or_else(|| format!("the Host {host:?} is not this machine: call localhost or 127.0.0.1"))?;
    match single(headers, &ORIGIN)? {
        None => Ok(()),
        Some(origin) if is_same_origin(origin, &authority) => Ok(()),
        Some(origin) => Err(format!("the Origin {origin:?} is another site, which may not call this port")),
    }
}

/// The value of a header that may be given once.
pub(crate) fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, String> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| format!("{name} is not text")),
        (Some(_), Some(_)) => Err(format!("{name} is given more than once")),
    }
}

fn is_loopback(authority: &Authority) -> bool {
    let host = authority.host();
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let is_named = host.eq_ignore_ascii_case("localhost");
    let is_address = address.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    (is_named || is_address) && !authority.as_str().contains('@')
}

fn is_same_origin(origin: &str, host: &Authority) -> bool {
    origin.strip_prefix("http://").is_some_and(|origin| origin.eq_ignore_ascii_case(host.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    #[test]
    fn only_this_machine_and_no_other_site_may_call() {
        for (host, origin, allowed) in [
            ("localhost", None, true),
            ("LOCALHOST:7701", None, true),
            ("127.0.0.1:7701", None, true),
            ("127.8.0.1", None, true),
            ("[::1]:7701", None, true),
            ("[::ffff:127.0.0.1]:7701", None, true),
            ("muster.example:7701", None, false),
            ("localhost.evil.example", None, false),
            ("127.0.0.1.evil.example", None, false),
            ("10.0.0.1:7701", None, false),
            ("[::2]:7701", None, false),
            ("evil.example@localhost", None, false),
            ("", None, false),
            ("a b", None, false),
            ("localhost:7701", Some("http://localhost:7701"), true),
            ("localhost:7701", Some("http://LocalHost:7701"), true),
            ("localhost:7701", Some("http://localhost:8000"), false),
            ("localhost:7701", Some("http://127.0.0.1:7701"), false),
            ("localhost:7701", Some("https://localhost:7701"), false),
            ("localhost:7701", Some("https://evil.example"), false),
            ("localhost:7701", Some("null"), false),
            ("localhost:7701", Some(""), false),
        ] {
            let mut given = headers(&[(HOST, host)]);
            given.extend(origin.map(|origin| (ORIGIN, origin.parse().unwrap())));
            let checked = check_origin(&given);
            assert_eq!(checked.is_ok(), allowed, "{host} from {origin:?}: {checked:?}");
        }
        assert!(check_origin(&HeaderMap::new()).unwrap_err().contains("no Host"));
        let mut twice = headers(&[(HOST, "localhost")]);
        twice.append(HOST, "evil.example".parse().unwrap());
        assert!(check_origin(&twice).unwrap_err().contains("more than once"));
    }
}

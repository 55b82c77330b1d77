//! Who may call the page's port: this machine, and no page of another site.

use std::net::SocketAddr;

use muster_tests::muster_process::{MusterProcess, http};

/// A page without servers, which is enough to be refused.
fn page(flags: &[&str]) -> (MusterProcess, SocketAddr, String) {
    let servers =
        ["--store", "http://127.0.0.1:9", "--controller", "http://127.0.0.1:9", "--request-timeout", "1s"];
    let ui = MusterProcess::ui(&[&servers[..], flags].concat());
    let url = ui.address();
    let (url, token) = url.split_once("/#token=").unwrap_or((url.trim_end_matches('/'), ""));
    let address = url.trim_start_matches("http://").parse().unwrap();
    (ui, address, token.to_owned())
}

#[test]
fn s280_a_foreign_host_origin_or_site_is_refused() {
    let (_ui, address, _) = page(&[]);
    let own = format!("Host: {address}");
    for (path, headers, allowed) in [
        ("/", own.clone(), true),
        ("/main.js", format!("Host: localhost:{}", address.port()), true),
        ("/", "Host: muster.example".to_owned(), false),
        ("/api/settings", "Host: evil.example".to_owned(), false),
        ("/api/settings", format!("{own}\r\nOrigin: http://{address}"), true),
        ("/api/settings", format!("{own}\r\nOrigin: http://evil.example"), false),
        ("/api/settings", format!("{own}\r\nOrigin: null"), false),
        ("/main.js", format!("{own}\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors"), false),
        ("/api/settings", format!("{own}\r\nSec-Fetch-Site: same-origin"), true),
        ("/", format!("{own}\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate"), true),
    ] {
        let answer = http(address, &format!("GET {path} HTTP/1.1\r\n{headers}\r\n"), "");
        let expected = if allowed { "HTTP/1.1 200" } else { "HTTP/1.1 403" };
        assert!(answer.starts_with(expected), "{path} {headers}: {answer}");
    }
}

#[test]
fn s280_every_answer_has_the_strict_policy() {
    let (_ui, address, _) = page(&[]);
    for path in ["/", "/main.js", "/api/settings", "/nothing"] {
        let answer = http(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n"), "");
        let head = answer.split_once("\r\n\r\n").unwrap().0.to_lowercase();
        for expected in [
            "content-security-policy: default-src 'none'; script-src 'self'",
            "require-trusted-types-for 'script'",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "cross-origin-resource-policy: same-origin",
            "cache-control: no-store",
            "referrer-policy: no-referrer",
        ] {
            assert!(head.contains(expected), "{path} has no {expected}: {head}");
        }
        assert!(!head.contains("unsafe") && !head.contains("access-control-allow"), "{head}");
    }
}

#[test]
fn s289_an_action_without_the_token_the_origin_or_json_is_refused() {
    let (_ui, address, token) = page(&["--allow-actions"]);
    assert_eq!(token.len(), 32);
    let (origin, json) = (format!("Origin: http://{address}\r\n"), "Content-Type: application/json\r\n");
    let own = format!("Muster-Token: {token}\r\n");
    for (headers, status) in [
        // Nobody answers at the controller's address: the request has passed all checks.
        (format!("{origin}{json}{own}"), "502"),
        (format!("{origin}{json}"), "403"),
        (format!("{json}{own}"), "403"),
        (format!("{origin}{own}Content-Type: text/plain\r\n"), "403"),
        (format!("Origin: http://evil.example\r\n{json}{own}"), "403"),
        (format!("{origin}{json}Muster-Token: {}\r\n", token.to_uppercase().replace('A', "B")), "403"),
    ] {
        let head = format!("POST /api/nodes/a HTTP/1.1\r\nHost: {address}\r\n{headers}");
        let answer = http(address, &head, r#"{"action":"cordon","reason":"new disk"}"#);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{headers}: {answer}");
    }
    let head = format!("POST /api/nodes/a HTTP/1.1\r\nHost: {address}\r\n{origin}{json}{own}");
    let answer = http(address, &head, r#"{"action":"cordon","reason":" "}"#);
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("reason"), "{answer}");
}

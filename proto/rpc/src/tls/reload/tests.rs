use super::*;

use std::fs;
use std::path::Path;

use prometheus_client::encoding::text::encode;
use rcgen::{CertificateParams, DnType, KeyPair, date_time_ymd};

use crate::tls::PemFile;

/// Writes a certificate with that name, which is its own authority, and its key.
fn write(dir: &Path, name: &str) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(2026, 1, 1);
    params.not_after = date_time_ymd(2026, 1, 31);
    fs::write(dir.join("cert.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(dir.join("key.pem"), key.serialize_pem()).unwrap();
}

fn read(dir: &Path) -> Credentials {
    let (cert, key) = (dir.join("cert.pem"), dir.join("key.pem"));
    let files = [("--tls-client-ca", &cert), ("--tls-cert", &cert), ("--tls-key", &key)];
    let [ca, cert, key] = files.map(|(flag, path)| PemFile::new(flag, path));
    Credentials::read(ca, cert, key).unwrap()
}

fn name(credentials: &Credentials) -> String {
    credentials.certificate().common_name
}

#[test]
fn files_that_do_not_fit_are_not_taken_over_and_are_named() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "first");
    let credentials = read(dir.path());
    assert!(!credentials.reload().unwrap(), "nothing has changed");
    let path = |name: &str| dir.path().join(name);
    let (certificate, key) = (fs::read(path("cert.pem")).unwrap(), fs::read(path("key.pem")).unwrap());

    let other = tempfile::tempdir().unwrap();
    write(other.path(), "second");
    let from_other = |name: &str| fs::read(other.path().join(name)).unwrap();
    let half = from_other("cert.pem")[..200].to_vec();
    let one_and_a_half = [certificate.clone(), half.clone()].concat();
    for (file, contents, expected) in [
        ("key.pem", Some(from_other("key.pem")), "--tls-key: key.pem is not the key of cert.pem"),
        ("cert.pem", Some(from_other("cert.pem")), "--tls-key: key.pem is not the key of cert.pem"),
        ("cert.pem", Some(half), "--tls-client-ca: cert.pem cannot be used"),
        ("cert.pem", Some(one_and_a_half), "--tls-client-ca: cert.pem cannot be used"),
        ("cert.pem", Some(Vec::new()), "--tls-client-ca: cert.pem holds no certificate"),
        ("key.pem", Some(Vec::new()), "--tls-key: key.pem holds no private key"),
        ("key.pem", None, "--tls-key: cannot read key.pem"),
    ] {
        match contents {
            Some(contents) => fs::write(path(file), contents).unwrap(),
            None => fs::remove_file(path(file)).unwrap(),
        }
        let error = credentials.reload().unwrap_err().to_string();
        let error = error.replace(&format!("{}/", dir.path().display()), "");
        assert!(error.starts_with(expected), "{error}, expected {expected}");
        assert_eq!(name(&credentials), "first", "after {error}");
        fs::write(path("cert.pem"), &certificate).unwrap();
        fs::write(path("key.pem"), &key).unwrap();
    }

    write(dir.path(), "second");
    assert!(credentials.reload().unwrap());
    assert_eq!(name(&credentials), "second");
}

#[tokio::test]
async fn failures_and_expiry_are_metered() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "first");
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let mut followed = Followed::new(read(dir.path()));
    metrics.observe(&followed.credentials);
    fs::remove_file(dir.path().join("key.pem")).unwrap();
    followed.reload(&metrics).await;
    followed.reload(&metrics).await;
    assert!(followed.failure.as_ref().is_some_and(|failure| failure.contains("--tls-key: cannot read")));
    write(dir.path(), "second");
    followed.reload(&metrics).await;
    assert_eq!(followed.failure, None);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let end = date_time_ymd(2026, 1, 31).unix_timestamp();
    for expected in [
        format!(
            "muster_certificate_expiry_timestamp_seconds{{kind=\"certificate\",flag=\"--tls-cert\"}} {end}"
        ),
        format!(
            "muster_certificate_expiry_timestamp_seconds{{kind=\"authority\",flag=\"--tls-client-ca\"}} {end}"
        ),
        "muster_certificate_reloads_total 1".to_owned(),
        "muster_certificate_reload_failures_total 2".to_owned(),
    ] {
        assert!(text.contains(&expected), "{expected} is not in:\n{text}");
    }
}

#[test]
fn the_end_of_a_certificate_is_announced_once_and_its_expiry_again() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "first");
    let mut followed = Followed::new(read(dir.path()));
    let mut announced_at = |day: &str| {
        followed.warn_of_expiry(format!("2026-{day}T00:00:00Z").parse().unwrap());
        followed.announced.iter().map(|(_, has_expired)| *has_expired).collect::<Vec<_>>()
    };
    assert_eq!(announced_at("01-23"), [] as [bool; 0], "more than seven days are left");
    // The certificate is its own authority here, and is announced once.
    assert_eq!(announced_at("01-24"), [false]);
    assert_eq!(announced_at("01-25"), [false]);
    assert_eq!(announced_at("01-31"), [false, true]);
    assert_eq!(announced_at("02-01"), [false, true]);
}

use super::*;
use std::os::unix::fs::PermissionsExt;

use muster_proto::identity::Caller;
use muster_rpc::identity::certificate_subject;
use muster_rpc::tls::{ClientTls, PemFile};
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;

const NOW: &str = "2026-05-04T03:02:01Z";

fn create_certs(directory: &Path, subjects: &[&str]) -> Result<String, Failure> {
    let subjects = subjects.iter().map(|text| text.parse().unwrap()).collect();
    let flags = Flags {
        directory: directory.to_owned(),
        subjects,
        host: vec!["muster.example".to_owned()],
        days: 30,
        missing: false,
        into: None,
    };
    create(&flags, NOW.parse().unwrap())
}

/// As a container does at each start: into a directory of its own, by a CA that it has no other use for.
fn ensure_certificate(authority: &Path, subject: &str, into: &Path) -> Result<String, Failure> {
    let flags = Flags {
        directory: authority.to_owned(),
        subjects: vec![subject.parse().unwrap()],
        host: vec![],
        days: 30,
        missing: true,
        into: Some(into.to_owned()),
    };
    create(&flags, NOW.parse().unwrap())
}

#[test]
fn missing_certificates_are_created_and_the_others_are_kept() {
    let home = tempfile::tempdir().unwrap();
    let [authority, store, agent] = ["authority", "store", "agent"].map(|name| home.path().join(name));
    ensure_certificate(&authority, "store", &store).unwrap();
    let files = |directory: &Path| {
        ["ca.crt", "tls.crt", "tls.key"].map(|file| fs::read(directory.join(file)).unwrap())
    };
    let first = files(&store);
    let output = ensure_certificate(&authority, "store", &store).unwrap();
    assert!(output.starts_with("all certificates exist in "), "{output}");
    assert_eq!(files(&store), first);
    ensure_certificate(&authority, "node:a", &agent).unwrap();
    assert_eq!(files(&agent)[0], first[0], "both are of the same CA");
    assert!(!store.join("ca.key").exists() && !agent.join("ca.key").exists(), "only the CA has its key");

    fs::remove_file(store.join("tls.key")).unwrap();
    let error = ensure_certificate(&authority, "store", &store).unwrap_err().report("certs");
    assert!(error.contains("tls.crt exists, and existing files are not overwritten"), "{error}");
}

#[test]
fn a_directory_of_its_own_is_for_one_certificate() {
    let home = tempfile::tempdir().unwrap();
    let flags = Flags {
        directory: home.path().join("authority"),
        subjects: vec![Subject::Store, Subject::Admin],
        host: vec![],
        days: 30,
        missing: false,
        into: Some(home.path().join("own")),
    };
    let error = create(&flags, NOW.parse().unwrap()).unwrap_err().report("certs");
    assert!(error.contains("--into is for one subject"), "{error}");
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn every_certificate_identifies_its_subject() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("new/pki");
    create_certs(&directory, &["store", "controller", "admin", "viewer", "up", "node:10.240.79.157"])
        .unwrap();
    for (file, expected) in [
        ("store.crt", "unknown caller (CN=store O=muster:stores)"),
        ("controller.crt", "controller"),
        ("admin.crt", "admin"),
        ("viewer.crt", "viewer"),
        ("up.crt", "admin"),
        ("nodes/10.240.79.157/tls.crt", "node:10.240.79.157"),
    ] {
        let [ca, cert] = [directory.join("ca.crt"), directory.join(file)];
        let key = cert.with_extension("key");
        let (_, pem) = parse_x509_pem(&fs::read(&cert).unwrap()).unwrap();
        let subject = certificate_subject(&pem.contents).unwrap();
        assert_eq!(Caller::from_subject(&subject).to_string(), expected);
        let file = PemFile::new;
        ClientTls::read(file("ca", &ca), file("cert", &cert), file("key", &key))
            .expect("key, certificate and CA match");
        assert_eq!((mode(&cert), mode(&key)), (0o644, 0o600), "{}", cert.display());
    }
    assert_eq!(mode(&directory.join("ca.key")), 0o600);
    let [ca, node_ca] =
        ["ca.crt", "nodes/10.240.79.157/ca.crt"].map(|file| fs::read(directory.join(file)).unwrap());
    assert_eq!(ca, node_ca, "an agent needs only the files in its own directory");
}

#[test]
fn certificates_are_valid_for_the_given_days_and_hosts() {
    let home = tempfile::tempdir().unwrap();
    create_certs(home.path(), &["store"]).unwrap();
    let (_, pem) = parse_x509_pem(&fs::read(home.path().join("store.crt")).unwrap()).unwrap();
    let certificate = pem.parse_x509().unwrap();
    let day = |time: x509_parser::time::ASN1Time| time.to_datetime().date().to_string();
    assert_eq!(day(certificate.validity().not_before), "2026-05-03");
    assert_eq!(day(certificate.validity().not_after), "2026-06-03");
    let names = certificate.subject_alternative_name().unwrap().unwrap().value;
    let shown: Vec<String> = names.general_names.iter().map(ToString::to_string).collect();
    for host in ["localhost", "muster.example"] {
        assert!(shown.iter().any(|name| name.contains(host)), "{shown:?}");
    }
    assert_eq!(shown.len(), 4, "{shown:?}");
}

#[test]
fn only_servers_get_the_names_and_the_usage_of_servers() {
    let home = tempfile::tempdir().unwrap();
    let subjects = ["store", "controller", "admin", "viewer", "up", "node:worker-1", "node:10.240.79.157"];
    create_certs(home.path(), &subjects).unwrap();
    let local = "DNSName(localhost), IPAddress(7f 00 00 01), IPAddress(00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 01)";
    let everywhere = format!("{local}, DNSName(muster.example)");
    for (file, names, serves, calls) in [
        ("store.crt", everywhere.as_str(), true, true),
        ("controller.crt", everywhere.as_str(), true, true),
        ("up.crt", everywhere.as_str(), true, true),
        ("admin.crt", "", false, true),
        ("viewer.crt", "", false, true),
        ("nodes/worker-1/tls.crt", "DNSName(worker-1)", true, true),
        ("nodes/10.240.79.157/tls.crt", "IPAddress(0a f0 4f 9d)", true, true),
    ] {
        let (_, pem) = parse_x509_pem(&fs::read(home.path().join(file)).unwrap()).unwrap();
        let certificate = pem.parse_x509().unwrap();
        let usage = certificate.extended_key_usage().unwrap().unwrap().value;
        assert_eq!((usage.server_auth, usage.client_auth), (serves, calls), "{file}");
        let found = certificate.subject_alternative_name().unwrap();
        let found = found.iter().flat_map(|names| &names.value.general_names).map(shown);
        assert_eq!(found.collect::<Vec<_>>().join(", "), names, "{file}");
    }
}

fn shown(name: &GeneralName<'_>) -> String {
    match name {
        GeneralName::DNSName(name) => format!("DNSName({name})"),
        GeneralName::IPAddress(bytes) => {
            let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("IPAddress({})", bytes.join(" "))
        }
        other => format!("{other:?}"),
    }
}

#[test]
fn more_certificates_come_from_the_same_ca_and_no_file_is_overwritten() {
    let home = tempfile::tempdir().unwrap();
    create_certs(home.path(), &["admin"]).unwrap();
    let authority = fs::read(home.path().join("ca.crt")).unwrap();
    create_certs(home.path(), &["viewer", "node:a"]).unwrap();
    assert_eq!(fs::read(home.path().join("ca.crt")).unwrap(), authority);

    let admin = fs::read(home.path().join("admin.crt")).unwrap();
    let refused = create_certs(home.path(), &["controller", "admin"]).unwrap_err();
    assert_eq!(refused.exit(), Some(Exit::Conflict));
    assert!(refused.report("certs").contains("admin.crt exists, and existing files are not overwritten"));
    assert!(!home.path().join("controller.crt").exists(), "all certificates or none");
    assert_eq!(fs::read(home.path().join("admin.crt")).unwrap(), admin);

    fs::remove_file(home.path().join("ca.key")).unwrap();
    let refused = create_certs(home.path(), &["controller"]).unwrap_err().report("certs");
    assert!(refused.contains("ca.crt exists"), "{refused}");
}

#[test]
fn unknown_subjects_are_refused() {
    for (text, expected) in [("root", "node:NAME"), ("node:", "must not be empty"), ("node:A", "lower-case")]
    {
        let refused = text.parse::<Subject>().unwrap_err();
        assert!(refused.contains(expected), "{refused}");
    }
}

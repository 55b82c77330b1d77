use clap::Parser;
use rcgen::{CertificateParams, KeyPair};

use super::*;

fn flags(args: &[&str]) -> Flags {
    let fixed = ["muster-agent", "--store=https://s:1", "--state-dir=/nonexistent"];
    Flags::try_parse_from(fixed.iter().chain(args)).unwrap()
}

fn problem(args: &[&str]) -> String {
    JoinSettings::check(&flags(args)).err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn flags_of_joining_are_checked_before_a_token_is_sent_anywhere() {
    let token = "--join-token=8000000000.00000000000000000000000000000abc";
    let hash = format!("--ca-hash=sha256:{}", "0".repeat(64));
    assert!(JoinSettings::check(&flags(&[])).unwrap().is_none(), "it does not join");
    for args in [&[token, &hash][..], &[&hash], &[token, "--ca=/ca.crt"], &["--ca=/ca.crt"]] {
        assert!(JoinSettings::check(&flags(args)).unwrap().is_some(), "{args:?}");
    }
    for (args, expected) in [
        (&[token][..], "--join-token needs --ca-hash or --ca"),
        (&["--join-token=abc", &hash], "--join-token: it must be ID.SECRET"),
        (&[token, "--ca-hash=sha256:12"], "--ca-hash: `sha256:12` is not a hash"),
        (&[token, "--ca-hash=md5:12"], "--ca-hash: `md5:12` is not a hash"),
        (
            &[token, &hash, "--credentials=/c"],
            "--join-token cannot be combined with --tls-cert and --credentials",
        ),
        (&[&hash, "--tls-cert=/c"], "--ca-hash cannot be combined with"),
    ] {
        let found = problem(args);
        assert!(found.starts_with(expected), "{args:?}: {found}");
    }
    assert!(
        !problem(&["--join-token=8000000000.wrong", &hash]).contains("wrong"),
        "a secret is not repeated"
    );
}

#[test]
fn of_the_stores_authorities_only_those_with_a_known_key_are_believed() {
    let certificate = || {
        let key = KeyPair::generate().unwrap();
        let hash = Sha256::of(&rcgen::PublicKeyData::subject_public_key_info(&key));
        (CertificateParams::default().self_signed(&key).unwrap().pem(), hash)
    };
    let ((first, first_hash), (second, second_hash), (_, other_hash)) =
        (certificate(), certificate(), certificate());
    let bundle = format!("{first}{second}");
    let count = |hashes: &[Sha256]| {
        recognised(&bundle, hashes).map(|known| CertificateFacts::read_pem(&known).unwrap().len())
    };
    assert_eq!(count(&[second_hash]).unwrap(), 1);
    assert_eq!(count(&[first_hash, second_hash, other_hash]).unwrap(), 2);
    for (hashes, authorities) in
        [(vec![other_hash], bundle.as_str()), (vec![first_hash], ""), (vec![first_hash], "x")]
    {
        let refused = recognised(authorities, &hashes).unwrap_err().to_string();
        assert!(refused.contains("it is another store, or its authority has changed"), "{refused}");
    }
}

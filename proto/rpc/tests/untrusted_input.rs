//! Headers and certificates of callers: reading them does not panic, and what is accepted is the same after it was
//! written and read again.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use muster_mutation::{bytes, cases, texts};
use muster_rpc::config::parse_duration;
use muster_rpc::identity::{certificate_subject, identified};
use muster_rpc::layers::deadline::parse_grpc_timeout;
use muster_rpc::trace::Traceparent;
use proptest::prelude::*;
use rcgen::{CertificateParams, DnType, KeyPair};

fn certificate() -> Vec<u8> {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, "node:a");
    params.distinguished_name.push(DnType::OrganizationName, "muster:nodes");
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn traceparents(text in texts(&[
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-more",
    ])) {
        if let Some(parsed) = Traceparent::parse(&text) {
            prop_assert_eq!(Traceparent::parse(&parsed.to_string()), Some(parsed));
        }
    }

    #[test]
    fn timeouts(text in texts(&["1S", "99999999H", "100m", "5n", "20u", "3M"])) {
        parse_grpc_timeout(text.as_bytes());
    }

    #[test]
    fn durations_of_flags(text in texts(&["0", "40s", "1m30s", "1.5h"])) {
        if let Err(error) = parse_duration(&text) {
            prop_assert!(!error.is_empty());
        }
    }

    #[test]
    fn certificates(der in bytes(vec![certificate()])) {
        let holder = identified(Some(&der));
        match certificate_subject(&der) {
            Ok(_) => prop_assert!(!holder.serial.is_empty()),
            Err(_) => prop_assert!(holder.caller.starts_with("unknown caller"), "{holder:?}"),
        }
    }
}

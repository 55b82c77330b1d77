//! When the certificates expire that `muster` is configured with.

use std::path::PathBuf;

use jiff::Timestamp;
use muster_rpc::tls::PemFile;
use muster_rpc::tls::certificate::CertificateInfo;

use super::checks::{Finding, Level};
use crate::connection::Connection;
use crate::failure::Failure;

/// A certificate and where it comes from.
#[derive(Clone, Debug)]
pub(super) struct Certificate {
    flag: &'static str,
    path: PathBuf,
    info: CertificateInfo,
}

/// All certificates in the files of the flags, the environment or the context.
pub(super) fn read(connection: &Connection) -> Result<Vec<Certificate>, Failure> {
    let mut found = Vec::new();
    for (flag, path) in connection.certificate_files() {
        let certificates = PemFile::new(flag, path).certificates().map_err(Failure::usage)?;
        found.extend(certificates.into_iter().map(|info| Certificate { flag, path: path.to_owned(), info }));
    }
    Ok(found)
}

/// What is to be said about each of them.
pub(super) fn findings(certificates: &[Certificate], now: Timestamp) -> Vec<Finding> {
    let finding = |certificate: &Certificate| {
        let Certificate { flag, path, info } = certificate;
        let days = info.not_after.duration_since(now).as_hours() / 24;
        let (level, what) = if now >= info.not_after {
            (Level::Unsafe, "has expired".to_owned())
        } else if now >= info.notice() {
            (Level::Warning, format!("expires soon, in {days} days"))
        } else {
            (Level::Note, format!("expires in {days} days"))
        };
        let name = if info.common_name.is_empty() { &info.serial } else { &info.common_name };
        let remedy = match level {
            Level::Note => "its processes read a new one from the same file, without a restart",
            Level::Warning | Level::Unsafe | Level::Broken => {
                "replace the file: processes read it again, without a restart"
            }
        };
        Finding {
            level,
            problem: format!(
                "the certificate of {name} in {flag} {} {what} ({})",
                path.display(),
                info.not_after
            ),
            remedy: remedy.to_owned(),
        }
    };
    certificates.iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearer_its_end_the_worse_the_finding() {
        let certificate = Certificate {
            flag: "--tls-cert",
            path: "/a/tls.crt".into(),
            info: CertificateInfo {
                common_name: "eva".into(),
                serial: "1".into(),
                not_before: "2026-01-01T00:00:00Z".parse().unwrap(),
                not_after: "2026-03-01T00:00:00Z".parse().unwrap(),
            },
        };
        for (now, level, expected) in [
            ("2026-01-10", Level::Note, "expires in 50 days"),
            ("2026-02-23", Level::Warning, "expires soon, in 6 days"),
            ("2026-03-01", Level::Unsafe, "has expired"),
        ] {
            let now = format!("{now}T00:00:00Z").parse().unwrap();
            let [found] = &findings(std::slice::from_ref(&certificate), now)[..] else {
                panic!("one finding")
            };
            let problem =
                format!("the certificate of eva in --tls-cert /a/tls.crt {expected} (2026-03-01T00:00:00Z)");
            assert_eq!((found.level, &found.problem), (level, &problem));
        }
    }
}

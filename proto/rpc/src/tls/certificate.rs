//! What a certificate says about itself, and when its end is near.

use std::time::Duration;

use jiff::Timestamp;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::identity::{UnreadableCertificate, certificate_subject};

/// An end that is nearer than this is always worth a warning.
const NOTICE: Duration = Duration::from_secs(7 * 24 * 3600);
/// A warning comes when this part of the life is left: a certificate that is renewed in time has more.
const NOTICE_PART: u32 = 3;

/// The name, number and times of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateInfo {
    pub common_name: String,
    /// In hexadecimal, as [`normal_serial`] writes it.
    pub serial: String,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

impl CertificateInfo {
    /// Reads a DER certificate. It checks no signature.
    ///
    /// # Errors
    /// When the bytes are not an X.509 certificate, or its name is not text.
    pub fn read(der: &[u8]) -> Result<CertificateInfo, UnreadableCertificate> {
        let subject = certificate_subject(der)?;
        let (_, certificate) = X509Certificate::from_der(der).map_err(UnreadableCertificate::new)?;
        let time = |seconds: i64| Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
        Ok(CertificateInfo {
            common_name: subject.common_name,
            serial: normal_serial(&certificate.raw_serial_as_string()),
            not_before: time(certificate.validity().not_before.timestamp()),
            not_after: time(certificate.validity().not_after.timestamp()),
        })
    }

    /// When to start to warn: when a third of its life is left, or seven days if that is less.
    pub fn notice(&self) -> Timestamp {
        let life = Duration::try_from(self.not_after.duration_since(self.not_before)).unwrap_or_default();
        self.not_after.saturating_sub(NOTICE.min(life / NOTICE_PART)).unwrap_or(self.not_after)
    }
}

/// A serial number as it is compared: hexadecimal in lower case, without separators and leading zeros.
pub fn normal_serial(text: &str) -> String {
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let digits = digits.trim_start_matches('0').to_ascii_lowercase();
    if digits.is_empty() { "0".to_owned() } else { digits }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SerialNumber, date_time_ymd};

    #[test]
    fn a_certificate_is_read_with_its_name_number_and_times() {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "node:n7");
        params.serial_number = Some(SerialNumber::from_slice(&[0x0a, 0xBC]));
        params.not_before = date_time_ymd(2026, 1, 1);
        params.not_after = date_time_ymd(2026, 1, 31);
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let info = CertificateInfo::read(certificate.der()).unwrap();
        let expected = CertificateInfo {
            common_name: "node:n7".into(),
            serial: "abc".into(),
            not_before: "2026-01-01T00:00:00Z".parse().unwrap(),
            not_after: "2026-01-31T00:00:00Z".parse().unwrap(),
        };
        assert_eq!(info, expected);
        assert!(CertificateInfo::read(b"not a certificate").is_err());
    }

    #[test]
    fn serial_numbers_are_compared_as_numbers() {
        for (text, expected) in
            [("0A:bc", "abc"), ("abc", "abc"), ("00", "0"), ("", "0"), ("100", "100"), ("FF:00:01", "ff0001")]
        {
            assert_eq!(normal_serial(text), expected, "{text:?}");
        }
    }

    #[test]
    fn the_notice_is_a_third_of_the_life_and_at_most_seven_days() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (life_hours, notice_hours) in [(24, 8), (3, 1), (30 * 24, 7 * 24), (365 * 24, 7 * 24), (0, 0)] {
            let hours = |hours: u64| Duration::from_secs(hours * 3600);
            let not_after = start + hours(life_hours);
            let info = CertificateInfo {
                common_name: String::new(),
                serial: "1".into(),
                not_before: start,
                not_after,
            };
            assert_eq!(info.notice(), not_after - hours(notice_hours), "a life of {life_hours} h");
        }
    }
}

//! `muster certs`: a certificate authority for development, and certificates for every part.
//!
//! Rights come from the organisation in a certificate (`muster_rpc::identity`), so this is also who may do
//! what.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use muster_proto::name::Name;
use muster_rpc::clock::{Clock, SystemClock};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};

use crate::failure::{Exit, Failure};
use crate::terminal::Terminal;

/// Makes certificates for development: an authority, and one for each part
///
/// The authority in DIR is used if there is one, so that further certificates can be added later. Nothing
/// that exists is overwritten. Keys are readable by their owner only. A real fleet wants a real authority.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Where they go; it is made if need be
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Who gets a certificate: store, controller, admin, viewer or node:NAME
    #[arg(value_name = "WHO", default_values = ["store", "controller", "admin", "viewer"])]
    holders: Vec<Holder>,

    /// Further names or addresses that servers are reached by, besides localhost, 127.0.0.1 and ::1
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    host: Vec<String>,

    /// Days that the certificates are valid for
    #[arg(
        long,
        value_name = "DAYS",
        default_value_t = 365,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    days: u16,
}

/// Whom a certificate is for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Holder {
    Store,
    Controller,
    Admin,
    Viewer,
    Node(Name),
}

impl FromStr for Holder {
    type Err = String;

    fn from_str(text: &str) -> Result<Holder, String> {
        match text {
            "store" => Ok(Holder::Store),
            "controller" => Ok(Holder::Controller),
            "admin" => Ok(Holder::Admin),
            "viewer" => Ok(Holder::Viewer),
            _ => match text.strip_prefix("node:") {
                Some(name) => {
                    name.parse().map(Holder::Node).map_err(|error| format!("the node's name {error}"))
                }
                None => Err("expected store, controller, admin, viewer or node:NAME".to_owned()),
            },
        }
    }
}

impl Holder {
    fn common_name(&self) -> String {
        match self {
            Holder::Store => "store".to_owned(),
            Holder::Controller => "controller".to_owned(),
            Holder::Admin => "admin".to_owned(),
            Holder::Viewer => "viewer".to_owned(),
            Holder::Node(name) => format!("node:{name}"),
        }
    }

    fn organization(&self) -> &'static str {
        match self {
            // It serves, and calls nobody: it needs no rights.
            Holder::Store => "muster:stores",
            Holder::Controller => "muster:controllers",
            Holder::Admin => "muster:admins",
            Holder::Viewer => "muster:viewers",
            Holder::Node(_) => "muster:nodes",
        }
    }

    /// Certificate and key. A node's lie where the agent's --credentials looks for them.
    fn files(&self, directory: &Path) -> (PathBuf, PathBuf) {
        match self {
            Holder::Node(name) => {
                let own = directory.join("nodes").join(name.as_str());
                (own.join("tls.crt"), own.join("tls.key"))
            }
            _ => {
                let name = self.common_name();
                (directory.join(format!("{name}.crt")), directory.join(format!("{name}.key")))
            }
        }
    }
}

pub(crate) fn run(flags: &Flags) -> Result<(), Failure> {
    let made = make(flags, SystemClock::new().wall())?;
    Terminal::stdout().say(&made)
}

/// Makes what is asked for, or nothing if any of it exists.
fn make(flags: &Flags, now: Timestamp) -> Result<String, Failure> {
    let directory = &flags.directory;
    let ca = (directory.join("ca.crt"), directory.join("ca.key"));
    let wanted: Vec<(&Holder, PathBuf, PathBuf)> = flags
        .holders
        .iter()
        .map(|holder| {
            let (cert, key) = holder.files(directory);
            (holder, cert, key)
        })
        .collect();
    if let Some(there) = wanted.iter().flat_map(|(_, cert, key)| [cert, key]).find(|path| path.exists()) {
        return Err(exists(there));
    }
    let validity = Validity::from(now, flags.days);
    let mut said = String::new();
    let (issuer, authority) = match (ca.0.exists(), ca.1.exists()) {
        (true, true) => open_authority(&ca.0, &ca.1)?,
        (false, false) => {
            let (issuer, pem) = new_authority(&ca.0, &ca.1, validity)?;
            said.push_str(&format!("{}\n", ca.0.display()));
            (issuer, pem)
        }
        (true, false) => return Err(exists(&ca.0)),
        (false, true) => return Err(exists(&ca.1)),
    };
    for (holder, cert, key) in &wanted {
        issue(holder, &issuer, &flags.host, validity, cert, key)?;
        if matches!(holder, Holder::Node(_)) {
            let beside = cert.with_file_name("ca.crt");
            write(&beside, &authority, Secrecy::Public)?;
        }
        said.push_str(&format!(
            "{}   {} of {}\n",
            cert.display(),
            holder.common_name(),
            holder.organization()
        ));
    }
    said.push_str(&next_steps(directory));
    Ok(said)
}

fn next_steps(directory: &Path) -> String {
    let dir = directory.display();
    format!(
        "\nThe keys lie beside them. To use them:\n\n  \
         muster-store --tls-cert {dir}/store.crt --tls-key {dir}/store.key --tls-client-ca {dir}/ca.crt\n  \
         muster config set-context dev --store https://localhost:7400 --controller https://localhost:7500 \\\n    \
         --tls-ca {dir}/ca.crt --tls-cert {dir}/admin.crt --tls-key {dir}/admin.key\n"
    )
}

fn exists(path: &Path) -> Failure {
    Failure::new(Exit::Conflict, format!("{} exists, and nothing is overwritten", path.display()))
        .hint("name another directory, leave that one out, or remove the file yourself")
}

/// From when to when, by day.
#[derive(Clone, Copy, Debug)]
struct Validity {
    from: Date,
    until: Date,
}

impl Validity {
    /// From yesterday on: not everybody's clock is ours.
    fn from(now: Timestamp, days: u16) -> Validity {
        let today = now.to_zoned(TimeZone::UTC).date();
        Validity { from: today.saturating_sub(1.day()), until: today.saturating_add(i32::from(days).days()) }
    }

    fn apply(self, params: &mut CertificateParams) {
        let time = |date: Date| date_time_ymd(i32::from(date.year()), date.month() as u8, date.day() as u8);
        params.not_before = time(self.from);
        params.not_after = time(self.until);
    }
}

type Authority = (Issuer<'static, KeyPair>, String);

fn new_authority(cert: &Path, key: &Path, validity: Validity) -> Result<Authority, Failure> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name = named("muster development authority", "muster");
    validity.apply(&mut params);
    let pair = KeyPair::generate().map_err(|error| cannot_make(&error))?;
    let own = params.self_signed(&pair).map_err(|error| cannot_make(&error))?;
    write(key, &pair.serialize_pem(), Secrecy::Private)?;
    write(cert, &own.pem(), Secrecy::Public)?;
    Ok((Issuer::new(params, pair), own.pem()))
}

fn open_authority(cert: &Path, key: &Path) -> Result<Authority, Failure> {
    let read = |path: &Path| {
        fs::read_to_string(path).map_err(|error| {
            Failure::new(Exit::Failed, format!("{} cannot be read: {error}", path.display())).hint(
                "an authority is ca.crt and ca.key; name another directory, and a new one is made there",
            )
        })
    };
    let (certificate, key_text) = (read(cert)?, read(key)?);
    let unusable = |path: &Path, error: &rcgen::Error| {
        Failure::new(Exit::Failed, format!("{} is no authority of ours: {error}", path.display()))
            .hint("name another directory, and a new authority is made there")
    };
    let pair = KeyPair::from_pem(&key_text).map_err(|error| unusable(key, &error))?;
    let issuer = Issuer::from_ca_cert_pem(&certificate, pair).map_err(|error| unusable(cert, &error))?;
    Ok((issuer, certificate))
}

fn issue(
    holder: &Holder,
    issuer: &Issuer<'static, KeyPair>,
    hosts: &[String],
    validity: Validity,
    cert: &Path,
    key: &Path,
) -> Result<(), Failure> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    names.extend(hosts.iter().cloned());
    if let Holder::Node(name) = holder {
        names.push(name.as_str().to_owned());
    }
    names.dedup();
    let wrong_host = |error: rcgen::Error| {
        Failure::usage(format!("--host: {error}")).hint("a host is a DNS name or an IP address")
    };
    let mut params = CertificateParams::new(names).map_err(wrong_host)?;
    params.distinguished_name = named(&holder.common_name(), holder.organization());
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // Every part both serves and calls, and is the same to both sides.
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    validity.apply(&mut params);
    let pair = KeyPair::generate().map_err(|error| cannot_make(&error))?;
    let certificate = params.signed_by(&pair, issuer).map_err(|error| cannot_make(&error))?;
    write(key, &pair.serialize_pem(), Secrecy::Private)?;
    write(cert, &certificate.pem(), Secrecy::Public)
}

fn named(common_name: &str, organization: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name.push(DnType::OrganizationName, organization);
    name
}

fn cannot_make(error: &rcgen::Error) -> Failure {
    Failure::new(Exit::Failed, format!("no certificate can be made: {error}"))
        .hint("name another directory, and a new authority is made there")
}

/// Who may read a file.
#[derive(Clone, Copy, Debug)]
enum Secrecy {
    Public,
    Private,
}

/// Writes a new file; one that exists is left as it is.
fn write(path: &Path, text: &str, secrecy: Secrecy) -> Result<(), Failure> {
    let mode = match secrecy {
        Secrecy::Public => 0o644,
        Secrecy::Private => 0o600,
    };
    let parent = path.parent().unwrap_or(Path::new("."));
    let written = fs::DirBuilder::new().recursive(true).mode(0o700).create(parent).and_then(|()| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(text.as_bytes())
    });
    written.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => exists(path),
        _ => Failure::new(Exit::Failed, format!("{} cannot be written: {error}", path.display()))
            .hint("name a directory that you may write to"),
    })
}

#[cfg(test)]
mod tests;

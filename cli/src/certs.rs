//! `muster certs`: a certificate authority for development, and certificates for all components.
//!
//! The organisation in a certificate is the role of its holder (`muster_proto::identity`): the store derives the rights of
//! a caller from it, and a client which servers it accepts. So the subjects here decide what each certificate permits. Only
//! servers get the names of servers.

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

/// Creates certificates for development: a certificate authority (CA) and a certificate for each component
///
/// If DIR has a CA already, that CA signs the new certificates, so more certificates can be added later. Existing
/// files are never overwritten; with --missing, certificates that exist are kept and the others are created. Key files are readable by their owner only. Do not use this CA in production.
///
/// Machines that join with a token need no certificate from here: the controller signs theirs. Give it this CA, and no other
/// process the key: muster-controller --signer-cert DIR/ca.crt --signer-key DIR/ca.key.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// The directory for the files; it is created if it does not exist
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Subjects to create certificates for: store, controller, admin, viewer, node:NAME, or up for `muster up`
    #[arg(value_name = "SUBJECT", default_values = ["store", "controller", "admin", "viewer"])]
    subjects: Vec<Subject>,

    /// More DNS names or IP addresses of store and controller, besides localhost, 127.0.0.1 and ::1
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    host: Vec<String>,

    /// How many days the certificates are valid
    #[arg(
        long,
        value_name = "DAYS",
        default_value_t = 365,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    days: u16,

    /// Keep certificates that exist, and create only those that are missing
    #[arg(long)]
    missing: bool,

    /// Write the certificate, its key and the CA's certificate to this directory instead, as tls.crt, tls.key and ca.crt;
    /// for one subject
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
}

/// The subject of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    Store,
    Controller,
    Admin,
    Viewer,
    /// `muster up`: all parts in one process.
    Up,
    Node(Name),
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Subject, String> {
        match text {
            "store" => Ok(Subject::Store),
            "controller" => Ok(Subject::Controller),
            "admin" => Ok(Subject::Admin),
            "viewer" => Ok(Subject::Viewer),
            "up" => Ok(Subject::Up),
            _ => match text.strip_prefix("node:") {
                Some(name) => {
                    name.parse().map(Subject::Node).map_err(|error| format!("the node's name {error}"))
                }
                None => Err("expected store, controller, admin, viewer, up or node:NAME".to_owned()),
            },
        }
    }
}

impl Subject {
    fn common_name(&self) -> String {
        match self {
            Subject::Store => "store".to_owned(),
            Subject::Controller => "controller".to_owned(),
            Subject::Admin => "admin".to_owned(),
            Subject::Viewer => "viewer".to_owned(),
            Subject::Up => "up".to_owned(),
            Subject::Node(name) => format!("node:{name}"),
        }
    }

    fn organization(&self) -> &'static str {
        match self {
            // The store only serves and makes no calls, so it needs no rights.
            Subject::Store => "muster:stores",
            Subject::Controller => "muster:controllers",
            Subject::Admin => "muster:admins",
            Subject::Viewer => "muster:viewers",
            Subject::Up => "muster:up",
            Subject::Node(_) => "muster:nodes",
        }
    }

    /// The names under which it serves. An agent serves under the name of its node; people do not serve.
    fn server_names(&self, hosts: &[String]) -> Vec<String> {
        match self {
            Subject::Store | Subject::Controller | Subject::Up => {
                let local = ["localhost", "127.0.0.1", "::1"];
                let more = hosts.iter().filter(|host| !local.contains(&host.as_str()));
                local.into_iter().map(str::to_owned).chain(more.cloned()).collect()
            }
            Subject::Node(name) => vec![name.as_str().to_owned()],
            Subject::Admin | Subject::Viewer => Vec::new(),
        }
    }

    fn usages(&self) -> Vec<ExtendedKeyUsagePurpose> {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        match self {
            Subject::Admin | Subject::Viewer => vec![ClientAuth],
            // They serve and make calls with the same certificate: one of several stores calls the one that leads.
            Subject::Store | Subject::Controller | Subject::Up | Subject::Node(_) => {
                vec![ServerAuth, ClientAuth]
            }
        }
    }

    /// The paths of certificate and key. A node's files have the names that the agent's --credentials expects.
    fn files(&self, directory: &Path) -> (PathBuf, PathBuf) {
        match self {
            Subject::Node(name) => {
                let node_dir = directory.join("nodes").join(name.as_str());
                (node_dir.join("tls.crt"), node_dir.join("tls.key"))
            }
            _ => {
                let name = self.common_name();
                (directory.join(format!("{name}.crt")), directory.join(format!("{name}.key")))
            }
        }
    }
}

pub(crate) fn run(flags: &Flags) -> Result<(), Failure> {
    let output = create(flags, SystemClock::new().wall())?;
    Terminal::stdout().print(&output)
}

/// Creates all certificates, or none if any of the files exists. Returns the text to print.
fn create(flags: &Flags, now: Timestamp) -> Result<String, Failure> {
    let directory = &flags.directory;
    let ca = (directory.join("ca.crt"), directory.join("ca.key"));
    let mut wanted: Vec<(&Subject, PathBuf, PathBuf)> = flags
        .subjects
        .iter()
        .map(|subject| {
            let (cert, key) = match &flags.into {
                Some(own) => (own.join("tls.crt"), own.join("tls.key")),
                None => subject.files(directory),
            };
            (subject, cert, key)
        })
        .collect();
    if flags.into.is_some() && wanted.len() != 1 {
        return Err(Failure::usage("--into is for one subject".to_owned())
            .hint("name one, or call the command once for each"));
    }
    if flags.missing {
        wanted.retain(|(_, cert, key)| !(cert.exists() && key.exists()));
        if wanted.is_empty() {
            return Ok(format!("all certificates exist in {}\n", directory.display()));
        }
    }
    if let Some(path) = wanted.iter().flat_map(|(_, cert, key)| [cert, key]).find(|path| path.exists()) {
        return Err(exists(path));
    }
    let validity = Validity::from(now, flags.days);
    let mut output = String::new();
    let (issuer, authority) = match (ca.0.exists(), ca.1.exists()) {
        (true, true) => open_authority(&ca.0, &ca.1)?,
        (false, false) => {
            let (issuer, pem) = new_authority(&ca.0, &ca.1, validity)?;
            output.push_str(&format!("{}\n", ca.0.display()));
            (issuer, pem)
        }
        (true, false) => return Err(exists(&ca.0)),
        (false, true) => return Err(exists(&ca.1)),
    };
    for (subject, cert, key) in &wanted {
        issue(subject, &issuer, &flags.host, validity, cert, key)?;
        if matches!(subject, Subject::Node(_)) || flags.into.is_some() {
            write(&cert.with_file_name("ca.crt"), &authority, Access::Public)?;
        }
        output.push_str(&format!(
            "{}   {} of {}\n",
            cert.display(),
            subject.common_name(),
            subject.organization()
        ));
    }
    output.push_str(&next_steps(directory));
    Ok(output)
}

fn next_steps(directory: &Path) -> String {
    let dir = directory.display();
    format!(
        "\nThe keys are in the same directories. To use the certificates:\n\n  \
         muster-store --tls-cert {dir}/store.crt --tls-key {dir}/store.key --tls-client-ca {dir}/ca.crt\n  \
         muster config set-context dev --store https://localhost:7400 --controller https://localhost:7500 \\\n    \
         --tls-ca {dir}/ca.crt --tls-cert {dir}/admin.crt --tls-key {dir}/admin.key\n"
    )
}

fn exists(path: &Path) -> Failure {
    Failure::new(Exit::Conflict, format!("{} exists, and existing files are not overwritten", path.display()))
        .hint("choose another directory, omit this certificate, or remove the file yourself")
}

/// The first and last day of a certificate.
#[derive(Clone, Copy, Debug)]
struct Validity {
    from: Date,
    until: Date,
}

impl Validity {
    /// Starts yesterday, because the clocks of other machines may be behind.
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
    params.distinguished_name = distinguished_name("muster development authority", "muster");
    validity.apply(&mut params);
    let pair = KeyPair::generate().map_err(|error| cannot_create(&error))?;
    let certificate = params.self_signed(&pair).map_err(|error| cannot_create(&error))?;
    write(key, &pair.serialize_pem(), Access::Private)?;
    write(cert, &certificate.pem(), Access::Public)?;
    Ok((Issuer::new(params, pair), certificate.pem()))
}

fn open_authority(cert: &Path, key: &Path) -> Result<Authority, Failure> {
    let read = |path: &Path| {
        fs::read_to_string(path).map_err(|error| {
            Failure::new(Exit::Failed, format!("cannot read {}: {error}", path.display()))
                .hint("a CA is ca.crt and ca.key; choose another directory to create a new CA")
        })
    };
    let (certificate, key_text) = (read(cert)?, read(key)?);
    let unusable = |path: &Path, error: &rcgen::Error| {
        Failure::new(Exit::Failed, format!("{} is not usable as a CA: {error}", path.display()))
            .hint("choose another directory to create a new CA")
    };
    let pair = KeyPair::from_pem(&key_text).map_err(|error| unusable(key, &error))?;
    let issuer = Issuer::from_ca_cert_pem(&certificate, pair).map_err(|error| unusable(cert, &error))?;
    Ok((issuer, certificate))
}

fn issue(
    subject: &Subject,
    issuer: &Issuer<'static, KeyPair>,
    hosts: &[String],
    validity: Validity,
    cert: &Path,
    key: &Path,
) -> Result<(), Failure> {
    let wrong_host = |error: rcgen::Error| {
        Failure::usage(format!("--host: {error}")).hint("a host is a DNS name or an IP address")
    };
    let mut params = CertificateParams::new(subject.server_names(hosts)).map_err(wrong_host)?;
    params.distinguished_name = distinguished_name(&subject.common_name(), subject.organization());
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = subject.usages();
    validity.apply(&mut params);
    let pair = KeyPair::generate().map_err(|error| cannot_create(&error))?;
    let certificate = params.signed_by(&pair, issuer).map_err(|error| cannot_create(&error))?;
    write(key, &pair.serialize_pem(), Access::Private)?;
    write(cert, &certificate.pem(), Access::Public)
}

fn distinguished_name(common_name: &str, organization: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name.push(DnType::OrganizationName, organization);
    name
}

fn cannot_create(error: &rcgen::Error) -> Failure {
    Failure::new(Exit::Failed, format!("cannot create a certificate: {error}"))
        .hint("choose another directory to create a new CA")
}

/// The access mode of a file.
#[derive(Clone, Copy, Debug)]
enum Access {
    Public,
    Private,
}

/// Writes a new file; it is an error if the file exists.
fn write(path: &Path, text: &str, access: Access) -> Result<(), Failure> {
    let mode = match access {
        Access::Public => 0o644,
        Access::Private => 0o600,
    };
    let parent = path.parent().unwrap_or(Path::new("."));
    let written = fs::DirBuilder::new().recursive(true).mode(0o700).create(parent).and_then(|()| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(text.as_bytes())
    });
    written.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => exists(path),
        _ => Failure::new(Exit::Failed, format!("cannot write {}: {error}", path.display()))
            .hint("choose a directory that you may write to"),
    })
}

#[cfg(test)]
mod tests;

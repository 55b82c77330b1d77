//! Certificate, key and authorities of a process: read from their files, and read again when they change.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::sign::CertifiedKey;

use super::TlsError;
use super::certificate::CertificateInfo;

/// A file of PEM blocks and the flag that named it, so that an error can say which flag to correct.
#[derive(Clone, Copy, Debug)]
pub struct PemFile<'a> {
    pub flag: &'static str,
    pub path: &'a Path,
}

impl<'a> PemFile<'a> {
    pub fn new(flag: &'static str, path: &'a Path) -> PemFile<'a> {
        PemFile { flag, path }
    }

    /// What the certificates of the file say about themselves.
    ///
    /// # Errors
    /// When the file cannot be read, or has no certificates or others than X.509.
    pub fn certificates(self) -> Result<Vec<CertificateInfo>, TlsError> {
        let source = Source::new(self);
        let certificates = source.certificates(&source.read()?)?;
        let read = certificates.iter().map(|certificate| CertificateInfo::read(certificate));
        read.collect::<Result<_, _>>().map_err(|error| source.unusable(&error))
    }
}

/// A [`PemFile`] that is read more than once.
#[derive(Debug)]
struct Source {
    flag: &'static str,
    path: PathBuf,
}

impl Source {
    fn new(file: PemFile<'_>) -> Source {
        Source { flag: file.flag, path: file.path.to_owned() }
    }

    fn read(&self) -> Result<Vec<u8>, TlsError> {
        fs::read(&self.path).map_err(|error| TlsError::Unreadable {
            flag: self.flag,
            path: self.path.clone(),
            error,
        })
    }

    fn not_pem(&self, expected: &'static str) -> TlsError {
        TlsError::NotPem { flag: self.flag, path: self.path.clone(), expected }
    }

    fn unusable(&self, reason: &impl ToString) -> TlsError {
        TlsError::Unusable { flag: self.flag, path: self.path.clone(), reason: reason.to_string() }
    }

    /// All certificates of the file, of which each must be whole: a file that is being written is not used.
    fn certificates(&self, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
        let found = found.map_err(|error| self.unusable(&error))?;
        if found.is_empty() { Err(self.not_pem("certificate")) } else { Ok(found) }
    }

    fn private_key(&self, text: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(text).map_err(|error| match error {
            pem::Error::NoItemsFound => self.not_pem("private key"),
            error => self.unusable(&error),
        })
    }
}

/// The bytes of the three files.
#[derive(PartialEq, Eq)]
struct Contents {
    authorities: Vec<u8>,
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// What the files hold, checked and ready for use.
pub(super) struct Material {
    /// The authorities of peers.
    pub(super) roots: Arc<RootCertStore>,
    /// The own certificate with its chain and key.
    pub(super) identity: Arc<CertifiedKey>,
    pub(super) certificate: CertificateInfo,
    /// The authority whose certificate ends first.
    pub(super) authority: CertificateInfo,
    contents: Contents,
}

#[derive(Debug)]
struct Files {
    authorities: Source,
    certificate: Source,
    key: Source,
}

impl Files {
    fn read(&self) -> Result<Contents, TlsError> {
        Ok(Contents {
            authorities: self.authorities.read()?,
            certificate: self.certificate.read()?,
            key: self.key.read()?,
        })
    }

    fn check(&self, contents: Contents) -> Result<Material, TlsError> {
        let mut roots = RootCertStore::empty();
        let mut authority: Option<CertificateInfo> = None;
        for certificate in self.authorities.certificates(&contents.authorities)? {
            let info =
                CertificateInfo::read(&certificate).map_err(|error| self.authorities.unusable(&error))?;
            roots.add(certificate).map_err(|error| self.authorities.unusable(&error))?;
            authority = authority.filter(|first| first.not_after <= info.not_after).or(Some(info));
        }
        let chain = self.certificate.certificates(&contents.certificate)?;
        let certificate =
            CertificateInfo::read(&chain[0]).map_err(|error| self.certificate.unusable(&error))?;
        let key = self.key.private_key(&contents.key)?;
        let identity =
            CertifiedKey::from_der(chain, key, &provider()).map_err(|error| TlsError::Mismatch {
                flag: self.key.flag,
                path: self.key.path.clone(),
                certificate: self.certificate.path.clone(),
                reason: error.to_string(),
            })?;
        let authority = authority.ok_or_else(|| self.authorities.not_pem("certificate"))?;
        Ok(Material {
            roots: Arc::new(roots),
            identity: Arc::new(identity),
            certificate,
            authority,
            contents,
        })
    }
}

/// Certificate, key and authorities, as they are in their files. Clones share them.
#[derive(Clone)]
pub struct Credentials {
    inner: Arc<Inner>,
}

struct Inner {
    files: Files,
    current: RwLock<Arc<Material>>,
}

impl Credentials {
    /// Reads the authorities to trust and the process's own certificate and key.
    ///
    /// # Errors
    /// When a file cannot be read, is not PEM, or does not fit the others.
    pub fn read(ca: PemFile<'_>, cert: PemFile<'_>, key: PemFile<'_>) -> Result<Credentials, TlsError> {
        let [authorities, certificate, key] = [ca, cert, key].map(Source::new);
        let files = Files { authorities, certificate, key };
        let material = files.check(files.read()?)?;
        Ok(Credentials { inner: Arc::new(Inner { files, current: RwLock::new(Arc::new(material)) }) })
    }

    /// Reads the files again. Connections that are made from now on use what is in them. Returns whether it is new.
    ///
    /// # Errors
    /// When a file cannot be read, is not PEM, or does not fit the others: what was read before stays in use.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let Inner { files, current } = &*self.inner;
        let contents = files.read()?;
        if contents == self.current().contents {
            return Ok(false);
        }
        let material = Arc::new(files.check(contents)?);
        *current.write().unwrap_or_else(PoisonError::into_inner) = material;
        Ok(true)
    }

    pub(super) fn current(&self) -> Arc<Material> {
        Arc::clone(&self.inner.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The own certificate, as it is in use.
    pub fn certificate(&self) -> CertificateInfo {
        self.current().certificate.clone()
    }

    /// The authority of peers whose own certificate ends first.
    pub fn authority(&self) -> CertificateInfo {
        self.current().authority.clone()
    }

    /// The flags of the certificate's file and of the authorities' file.
    pub(super) fn flags(&self) -> [&'static str; 2] {
        [self.inner.files.certificate.flag, self.inner.files.authorities.flag]
    }

    pub(super) fn is(&self, other: &Credentials) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

/// Without the key.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("files", &self.inner.files).finish_non_exhaustive()
    }
}

/// The process's cryptography, or ring's.
pub(super) fn provider() -> Arc<CryptoProvider> {
    CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(ring::default_provider()))
}

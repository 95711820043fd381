//! Keys and certificates of the rack's own connections.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name in every certificate of the rack. Addresses are not in them: pods change theirs.
const NAME: &str = "rack.tailwater";

/// Security of a connection.
#[derive(Clone, Debug)]
pub enum Security {
    /// Both ends show a certificate of the rack's authority: `ca.crt`, `tls.crt` and `tls.key` in this folder, as in a
    /// secret of Kubernetes. They are read for each connection, so that new ones are used without a restart.
    Mutual(PathBuf),
    /// Nobody shows anything: for tests, and for networks that are secured otherwise.
    None,
}

/// Error of keys and certificates.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be used.
    #[error("{}: {message}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Reason.
        message: String,
    },
    /// They do not fit together.
    #[error("the certificates in {}: {message}", path.display())]
    Unfit {
        /// The folder.
        path: PathBuf,
        /// Reason.
        message: String,
    },
}

struct Files {
    authority: RootCertStore,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Files {
    fn read(folder: &Path) -> Result<Files, TlsError> {
        let wrong = |name: &str, message: String| TlsError::File {
            path: folder.join(name),
            message,
        };
        let certificates = |name: &str| {
            let found =
                CertificateDer::pem_file_iter(folder.join(name)).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            match found {
                Ok(found) if found.is_empty() => Err(wrong(name, "expected a certificate, found none".to_owned())),
                Ok(found) => Ok(found),
                Err(error) => Err(wrong(name, error.to_string())),
            }
        };
        let mut authority = RootCertStore::empty();
        for certificate in certificates("ca.crt")? {
            authority
                .add(certificate)
                .map_err(|error| wrong("ca.crt", error.to_string()))?;
        }
        let key = PrivateKeyDer::from_pem_file(folder.join("tls.key"));
        Ok(Files {
            authority,
            chain: certificates("tls.crt")?,
            key: key.map_err(|error| wrong("tls.key", error.to_string()))?,
        })
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Settings of the end that listens.
pub(super) fn server(folder: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let unfit = |message: String| TlsError::Unfit {
        path: folder.to_owned(),
        message,
    };
    let files = Files::read(folder)?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(files.authority), provider()).build();
    let verifier = verifier.map_err(|error| unfit(error.to_string()))?;
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| unfit(error.to_string()))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(files.chain, files.key);
    let mut config = config.map_err(|error| unfit(error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// Settings of the end that connects, and the name that the other end must have.
pub(super) fn client(folder: &Path) -> Result<(Arc<ClientConfig>, ServerName<'static>), TlsError> {
    let unfit = |message: String| TlsError::Unfit {
        path: folder.to_owned(),
        message,
    };
    let files = Files::read(folder)?;
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| unfit(error.to_string()))?
        .with_root_certificates(files.authority)
        .with_client_auth_cert(files.chain, files.key);
    let mut config = config.map_err(|error| unfit(error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok((Arc::new(config), ServerName::try_from(NAME).expect("a name")))
}

impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> io::Error {
        io::Error::other(error)
    }
}

//! TLS to a collector.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;

/// Largest file of certificates, in bytes.
const LARGEST: u64 = 4 << 20;

/// Configuration of a client that trusts the authorities of a file in PEM, or else those that the machine trusts.
///
/// # Errors
/// The rest of a line that names the file.
pub(super) fn client(authorities: Option<&str>) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    match authorities {
        Some(file) => {
            let text = tailwater_files::read(Path::new(file), LARGEST).map_err(|error| format!("{file}: {error}"))?;
            for certificate in CertificateDer::pem_slice_iter(&text) {
                let certificate = certificate.map_err(|error| format!("{file}: {error}"))?;
                roots.add(certificate).map_err(|error| format!("{file}: {error}"))?;
            }
        }
        // Some of them may be unusual, which matters only to those that need them.
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(format!(
            "{}: expected certificates of authorities, found none",
            authorities.unwrap_or("this machine")
        ));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

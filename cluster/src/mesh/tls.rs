//! TLS of links over TCP: both ends show a certificate that an authority of the rack signed for
//! their node's name.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::{Authorities, Identity};

/// What a node needs for TLS.
pub(crate) struct Tls {
    connector: TlsConnector,
    acceptor: TlsAcceptor,
}

impl Tls {
    /// Reads a node's certificate and key, and the rack's authorities.
    ///
    /// # Errors
    /// What is wrong with which file.
    pub fn load(authorities: &Authorities, identity: &Identity) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&authorities.authorities)? {
            let added = roots.add(certificate);
            added.map_err(|error| format!("{:?}: {error}", authorities.authorities))?;
        }
        let roots = Arc::new(roots);
        let chain = certificates(&identity.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&identity.key)
            .map_err(|error| format!("{:?}: {error}", identity.key))?;
        let wrong = |error: rustls::Error| {
            format!("{:?} and {:?}: {error}", identity.certificate, identity.key)
        };
        // Not the process's default: there may be none, or one that this crate knows nothing of.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = &[&rustls::version::TLS13];
        let client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)
            .map_err(wrong)?
            .with_root_certificates(roots.clone())
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(wrong)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
            .build()
            .map_err(|error| format!("{:?}: {error}", authorities.authorities))?;
        let server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(wrong)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(wrong)?;
        Ok(Self {
            connector: Arc::new(client).into(),
            acceptor: Arc::new(server).into(),
        })
    }

    /// The end that dials: the peer must be the node of that name.
    pub async fn connect(
        &self,
        stream: TcpStream,
        name: &str,
    ) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let name = ServerName::try_from(name.to_string()).map_err(io::Error::other)?;
        self.connector.connect(name, stream).await
    }

    /// The other end. Which node's certificate it has to be is known when the peer has said which
    /// link this is: [`check_name`].
    pub async fn accept(
        &self,
        stream: TcpStream,
    ) -> io::Result<(
        tokio_rustls::server::TlsStream<TcpStream>,
        CertificateDer<'static>,
    )> {
        let stream = self.acceptor.accept(stream).await?;
        let shown = stream.get_ref().1.peer_certificates();
        let certificate = shown.and_then(<[_]>::first).cloned();
        let certificate = certificate.ok_or_else(|| io::Error::other("no certificate"))?;
        Ok((stream, certificate))
    }
}

/// Whether a certificate is for the node `name`.
pub(crate) fn check_name(certificate: &CertificateDer<'_>, name: &str) -> Result<(), String> {
    let other = || format!("the certificate is not one for node '{name}'");
    let server_name = ServerName::try_from(name).map_err(|_| other())?;
    let certificate = ParsedCertificate::try_from(certificate).map_err(|_| other())?;
    verify_server_name(&certificate, &server_name).map_err(|_| other())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let certificates: Vec<_> = read.map_err(|error| format!("{path:?}: {error}"))?;
    match certificates.is_empty() {
        true => Err(format!("{path:?} has no certificate")),
        false => Ok(certificates),
    }
}

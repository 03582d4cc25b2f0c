//! TLS for client connections, with the server's certificate.
//!
//! Reads the certificate and key files again every minute, because certificates are renewed while the server runs. Never falls back to
//! plaintext if TLS is configured, and never prompts for a key's password at a terminal.

use crate::config;
use openssl::error::ErrorStack;
use openssl::pkey::{PKey, Private};
use openssl::ssl::{Ssl, SslAcceptor, SslMethod, SslVerifyMode};
use openssl::x509::X509;
use openssl::x509::store::X509StoreBuilder;
use openssl::x509::verify::X509VerifyFlags;
use std::fmt;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep, timeout};
use tokio_openssl::SslStream;

const READ_EVERY: Duration = Duration::from_secs(60);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Encrypts connections with TLS 1.2 and 1.3, according to Mozilla's "intermediate" configuration, version 5.
pub struct Tls {
    files: config::Tls,
    now: RwLock<Loaded>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

struct Loaded {
    contents: Contents,
    acceptor: SslAcceptor,
    /// The acceptor for clients that need no certificate.
    open: SslAcceptor,
}

impl Loaded {
    fn new(files: &config::Tls, contents: Contents) -> Result<Self, String> {
        let [acceptor, open] = [acceptor(files, &contents, true)?, acceptor(files, &contents, false)?];
        Ok(Self { contents, acceptor, open })
    }
}

#[derive(PartialEq, Eq)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Tls {
    /// Loads the files of `serve.tls`.
    ///
    /// # Errors
    /// Returns an error message if a file cannot be read or is invalid.
    pub fn new(files: &config::Tls) -> Result<Self, String> {
        Ok(Self { files: files.clone(), now: RwLock::new(Loaded::new(files, read(files)?)?) })
    }

    #[must_use]
    pub const fn wants_certificates(&self) -> bool {
        self.files.client_ca_location.is_some()
    }

    /// Encrypts a client's connection. Requires a client certificate if `serve.tls.client_ca_location` is set.
    ///
    /// # Errors
    /// Returns an error if the handshake fails or times out.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<SslStream<S>> {
        let ssl = Ssl::new(self.read().acceptor.context())?;
        encrypt(ssl, stream).await
    }

    /// Encrypts a client's connection without requiring a client certificate, because health probes cannot present a certificate.
    ///
    /// # Errors
    /// Fails like [`Tls::accept`].
    pub async fn accept_any<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<SslStream<S>> {
        let ssl = Ssl::new(self.read().open.context())?;
        encrypt(ssl, stream).await
    }

    fn read(&self) -> RwLockReadGuard<'_, Loaded> {
        self.now.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the files every minute until the future is dropped. If the files have changed and are valid, new connections use them. If they
    /// are invalid, the previous files stay in use, because the new files may be only partly written.
    pub async fn renew(&self) {
        loop {
            sleep(READ_EVERY).await;
            match self.read_again() {
                Ok(true) => tracing::info!("serve.tls: loaded the changed files; new connections use them"),
                Ok(false) => {}
                Err(error) => tracing::warn!(
                    error,
                    "serve.tls: cannot load the files; the server keeps using the previous ones and retries every minute"
                ),
            }
        }
    }

    /// Loads the files if their contents have changed. Returns true if the new contents are in use.
    fn read_again(&self) -> Result<bool, String> {
        let contents = read(&self.files)?;
        if contents == self.read().contents {
            return Ok(false);
        }
        let loaded = Loaded::new(&self.files, contents)?;
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = loaded;
        Ok(true)
    }
}

async fn encrypt<S: AsyncRead + AsyncWrite + Unpin>(ssl: Ssl, stream: S) -> io::Result<SslStream<S>> {
    let mut stream = SslStream::new(ssl, stream)?;
    match timeout(HANDSHAKE_TIMEOUT, Pin::new(&mut stream).accept()).await {
        Ok(Ok(())) => Ok(stream),
        Ok(Err(error)) => Err(io::Error::other(error)),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

fn read(files: &config::Tls) -> Result<Contents, String> {
    let read = |option: &str, file: &Path| {
        std::fs::read(file).map_err(|error| format!("serve.tls.{option}: cannot read {}: {error}", file.display()))
    };
    let client_ca = files.client_ca_location.as_deref();
    Ok(Contents {
        certificate: read("certificate_location", &files.certificate_location)?,
        key: read("key_location", &files.key_location)?,
        client_ca: client_ca.map(|file| read("client_ca_location", file)).transpose()?,
    })
}

fn acceptor(files: &config::Tls, contents: &Contents, wants_certificates: bool) -> Result<SslAcceptor, String> {
    let certificates = certificates("certificate_location", &files.certificate_location, &contents.certificate)?;
    let key = key(&contents.key).map_err(|why| {
        format!("serve.tls.key_location: {} does not contain an unencrypted private key in PEM ({why})", files.key_location.display())
    })?;
    let failed = |error: ErrorStack| format!("serve.tls: OpenSSL rejects these files: {error}");
    let mut builder = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server()).map_err(failed)?;
    let (own, chain) = certificates.split_first().ok_or_else(|| failed(ErrorStack::get()))?;
    builder.set_certificate(own).map_err(failed)?;
    for above in chain {
        builder.add_extra_chain_cert(above.clone()).map_err(failed)?;
    }
    // This call also checks that the key matches the certificate.
    builder.set_private_key(&key).map_err(|_| {
        let [key, certificate] = [&files.key_location, &files.certificate_location].map(|file| file.display());
        format!("serve.tls.key_location: the key in {key} does not belong to the certificate in {certificate}")
    })?;
    if let Some((file, pem)) = files.client_ca_location.as_ref().zip(contents.client_ca.as_ref()).filter(|_| wants_certificates) {
        let mut trusted = X509StoreBuilder::new().map_err(failed)?;
        for certificate in self::certificates("client_ca_location", file, pem)? {
            builder.add_client_ca(&certificate).map_err(failed)?;
            trusted.add_cert(certificate).map_err(failed)?;
        }
        // `client_ca_location` may contain an intermediate certificate without its root.
        trusted.set_flags(X509VerifyFlags::PARTIAL_CHAIN).map_err(failed)?;
        builder.set_verify_cert_store(trusted.build()).map_err(failed)?;
        builder.set_verify(SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT);
        // Without a session id context, OpenSSL refuses to resume the session of a client that has presented a certificate.
        builder.set_session_id_context(b"unseen").map_err(failed)?;
    }
    Ok(builder.build())
}

fn certificates(option: &str, file: &Path, pem: &[u8]) -> Result<Vec<X509>, String> {
    match X509::stack_from_pem(pem) {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(format!("serve.tls.{option}: {} does not contain a certificate in PEM", file.display())),
    }
}

fn key(pem: &[u8]) -> Result<PKey<Private>, ErrorStack> {
    // Without this callback, OpenSSL prompts for a password at the terminal.
    PKey::private_key_from_pem_callback(pem, |_| Ok(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use openssl::asn1::Asn1Time;
    use openssl::ec::{EcGroup, EcKey};
    use openssl::hash::MessageDigest;
    use openssl::nid::Nid;
    use openssl::ssl::{SslConnector, SslFiletype};
    use openssl::symm::Cipher;
    use openssl::x509::extension::BasicConstraints;
    use openssl::x509::{X509Builder, X509NameBuilder};
    use std::path::PathBuf;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    fn certificate(name: &str, signer: Option<&(X509, PKey<Private>)>) -> (X509, PKey<Private>) {
        let curve = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
        let key = PKey::from_ec_key(EcKey::generate(&curve).unwrap()).unwrap();
        let mut subject = X509NameBuilder::new().unwrap();
        subject.append_entry_by_text("CN", name).unwrap();
        let subject = subject.build();
        let mut builder = X509Builder::new().unwrap();
        builder.set_version(2).unwrap();
        builder.set_subject_name(&subject).unwrap();
        builder.set_issuer_name(signer.map_or(&subject, |(certificate, _)| certificate.subject_name())).unwrap();
        builder.set_pubkey(&key).unwrap();
        builder.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
        builder.set_not_after(&Asn1Time::days_from_now(1).unwrap()).unwrap();
        if signer.is_none() {
            builder.append_extension(BasicConstraints::new().critical().ca().build().unwrap()).unwrap();
        }
        builder.sign(signer.map_or(&key, |(_, key)| key), MessageDigest::sha256()).unwrap();
        (builder.build(), key)
    }

    struct Files {
        dir: tempfile::TempDir,
        ca: (X509, PKey<Private>),
    }

    impl Files {
        fn new() -> Self {
            let files = Self { dir: tempfile::tempdir().unwrap(), ca: certificate("root", None) };
            files.write("ca", &files.ca.0.to_pem().unwrap());
            files.issue("server", "localhost");
            files.issue("client", "me");
            files
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn write(&self, name: &str, bytes: &[u8]) {
            std::fs::write(self.path(name), bytes).unwrap();
        }

        fn issue(&self, file: &str, name: &str) {
            let (certificate, key) = certificate(name, Some(&self.ca));
            self.write(&format!("{file}.crt"), &certificate.to_pem().unwrap());
            self.write(&format!("{file}.key"), &key.private_key_to_pem_pkcs8().unwrap());
        }

        fn options(&self) -> config::Tls {
            config::Tls { certificate_location: self.path("server.crt"), key_location: self.path("server.key"), client_ca_location: None }
        }

        /// Makes a client send a word and receive the echo. Returns the name in the certificate that the server presents.
        async fn talk(&self, tls: &Tls, client_certificate: Option<&str>) -> io::Result<String> {
            let (here, there) = tokio::io::duplex(1 << 10);
            let mut connector = SslConnector::builder(SslMethod::tls_client())?;
            connector.set_ca_file(self.path("ca"))?;
            if let Some(name) = client_certificate {
                connector.set_certificate_file(self.path(&format!("{name}.crt")), SslFiletype::PEM)?;
                connector.set_private_key_file(self.path(&format!("{name}.key")), SslFiletype::PEM)?;
            }
            let client = async {
                let ssl = connector.build().configure()?.verify_hostname(false).into_ssl("localhost")?;
                let mut stream = SslStream::new(ssl, there)?;
                Pin::new(&mut stream).connect().await.map_err(io::Error::other)?;
                stream.write_all(b"hello").await?;
                let mut heard = [0; 5];
                stream.read_exact(&mut heard).await?;
                assert_eq!(&heard, b"hello");
                let seen = stream.ssl().peer_certificate().unwrap();
                let name = seen.subject_name().entries().next().unwrap().data().to_string()?;
                Ok(name)
            };
            let server = async {
                let mut stream = tls.accept(here).await?;
                let mut heard = [0; 5];
                stream.read_exact(&mut heard).await?;
                stream.write_all(&heard).await
            };
            let (name, ended) = tokio::join!(client, server);
            ended.and(name)
        }
    }

    #[tokio::test]
    async fn clients_see_the_certificate_and_new_ones_once_they_can_be_used() {
        let files = Files::new();
        let tls = Tls::new(&files.options()).unwrap();
        assert_eq!(files.talk(&tls, None).await.unwrap(), "localhost");
        assert_eq!(tls.read_again(), Ok(false), "nothing is new");

        // Only the certificate is new, so it does not match the key.
        let old_key = std::fs::read(files.path("server.key")).unwrap();
        files.issue("server", "renewed");
        let new_key = std::fs::read(files.path("server.key")).unwrap();
        files.write("server.key", &old_key);
        assert!(tls.read_again().unwrap_err().contains("does not belong to the certificate"));
        assert_eq!(files.talk(&tls, None).await.unwrap(), "localhost");
        files.write("server.key", &new_key);
        assert_eq!(tls.read_again(), Ok(true));
        assert_eq!(files.talk(&tls, None).await.unwrap(), "renewed");
    }

    #[tokio::test]
    async fn clients_show_a_certificate_where_one_is_wanted() {
        let files = Files::new();
        let tls = Tls::new(&config::Tls { client_ca_location: Some(files.path("ca")), ..files.options() }).unwrap();
        assert_eq!(files.talk(&tls, Some("client")).await.unwrap(), "localhost");
        assert!(files.talk(&tls, None).await.is_err());
        let (certificate, key) = certificate("a stranger", None);
        files.write("stranger.crt", &certificate.to_pem().unwrap());
        files.write("stranger.key", &key.private_key_to_pem_pkcs8().unwrap());
        assert!(files.talk(&tls, Some("stranger")).await.is_err());
    }

    #[test]
    fn errors_name_the_file_and_its_problem() {
        let files = Files::new();
        let refused = |change: &dyn Fn(&mut config::Tls)| {
            let mut options = files.options();
            change(&mut options);
            Tls::new(&options).unwrap_err()
        };
        let missing = refused(&|options| options.key_location = files.path("nowhere"));
        assert!(missing.starts_with("serve.tls.key_location: cannot read ") && missing.contains("nowhere"), "{missing}");
        let swapped = refused(&|options| options.certificate_location = files.path("server.key"));
        assert!(swapped.ends_with("server.key does not contain a certificate in PEM"), "{swapped}");
        let other = refused(&|options| options.key_location = files.path("client.key"));
        assert!(other.contains("client.key does not belong to the certificate in "), "{other}");
        let locked = files.ca.1.private_key_to_pem_pkcs8_passphrase(Cipher::aes_256_cbc(), b"secret").unwrap();
        files.write("locked.key", &locked);
        let locked = refused(&|options| options.key_location = files.path("locked.key"));
        assert!(locked.contains("locked.key does not contain an unencrypted private key in PEM"), "{locked}");
        let no_ca = refused(&|options| options.client_ca_location = Some(files.path("client.key")));
        assert!(no_ca.starts_with("serve.tls.client_ca_location: "), "{no_ca}");
    }
}

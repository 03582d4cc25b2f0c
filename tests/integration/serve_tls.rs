//! Promise: with `serve.tls`, a server encrypts everything it sends on both ports and answers no plaintext client.

use crate::harness::{Asker, Setup};
use openssl::asn1::Asn1Time;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::ssl::{SslConnector, SslMethod};
use openssl::x509::extension::SubjectAlternativeName;
use openssl::x509::{X509Builder, X509NameBuilder};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

fn write_certificate(dir: &Path) {
    let curve = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).expect("a curve");
    let key = PKey::from_ec_key(EcKey::generate(&curve).expect("a key")).expect("a key");
    let mut name = X509NameBuilder::new().expect("a name");
    name.append_entry_by_text("CN", "localhost").expect("a name");
    let name = name.build();
    let mut builder = X509Builder::new().expect("a certificate");
    builder.set_version(2).expect("a version");
    builder.set_subject_name(&name).expect("a name");
    builder.set_issuer_name(&name).expect("a name");
    builder.set_pubkey(&key).expect("a key");
    builder.set_not_before(&Asn1Time::days_from_now(0).expect("a time")).expect("a time");
    builder.set_not_after(&Asn1Time::days_from_now(1).expect("a time")).expect("a time");
    let names = SubjectAlternativeName::new().dns("localhost").build(&builder.x509v3_context(None, None)).expect("names");
    builder.append_extension(names).expect("names");
    builder.sign(&key, MessageDigest::sha256()).expect("a signature");
    std::fs::write(dir.join("tls.crt"), builder.build().to_pem().expect("PEM")).expect("a file");
    std::fs::write(dir.join("tls.key"), key.private_key_to_pem_pkcs8().expect("PEM")).expect("a file");
}

/// Sends `question` over TLS. Returns everything that the server sends until it closes the connection.
fn ask(address: &str, dir: &Path, question: &str) -> String {
    let mut connector = SslConnector::builder(SslMethod::tls_client()).expect("OpenSSL");
    connector.set_ca_file(dir.join("tls.crt")).expect("a certificate");
    let stream = TcpStream::connect(address).expect("a connection");
    let mut stream = connector.build().connect("localhost", stream).expect("an encrypted connection");
    stream.write_all(question.as_bytes()).expect("a question");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn nothing_is_sent_in_plaintext() {
    // The server listens even without brokers.
    let setup =
        Setup::new("127.0.0.1:1", "tls").topic("in", "out", "key = { record = \"key\" }\nwindow = \"1h\"\nfilter = { capacity = 1000 }");
    write_certificate(setup.dir());
    let file = |name: &str| setup.dir().join(name).display().to_string();
    let (certificate, key) =
        (format!("serve.tls.certificate_location={}", file("tls.crt")), format!("serve.tls.key_location={}", file("tls.key")));
    let (server, address, status) = setup.serve("s", &[&certificate, &key]);

    assert_eq!(ask(&address, setup.dir(), "PING\r\nQUIT\r\n"), "+PONG\r\n+OK\r\n");
    let live = ask(&status, setup.dir(), "GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(live.starts_with("HTTP/1.1 200 OK\r\n") && live.ends_with("ok\n"), "{live}");
    for address in [&address, &status] {
        let mut plain = Asker::connect(address);
        plain.send(b"PING\r\n\r\n");
        let mut answer = Vec::new();
        plain.read_to_end(&mut answer);
        assert!(!answer.windows(4).any(|window| window == b"PONG" || window == b"HTTP"), "{answer:?}");
    }
    server.drain();
}

//! Authentication with brokers: the documented mechanisms are accepted, and Kerberos is rejected.

use super::{ID, Setup};
use openssl::asn1::Asn1Time;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::x509::{X509Builder, X509NameBuilder};
use std::fs;
use std::path::Path;

/// A self-signed certificate and its private key, in PEM.
fn certificate() -> (Vec<u8>, Vec<u8>) {
    let key = PKey::from_ec_key(EcKey::generate(&EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap()).unwrap()).unwrap();
    let mut name = X509NameBuilder::new().unwrap();
    name.append_entry_by_text("CN", "unseen").unwrap();
    let name = name.build();
    let mut builder = X509Builder::new().unwrap();
    builder.set_version(2).unwrap();
    builder.set_subject_name(&name).unwrap();
    builder.set_issuer_name(&name).unwrap();
    builder.set_pubkey(&key).unwrap();
    builder.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
    builder.set_not_after(&Asn1Time::days_from_now(1).unwrap()).unwrap();
    builder.sign(&key, MessageDigest::sha256()).unwrap();
    (builder.build().to_pem().unwrap(), key.private_key_to_pem_pkcs8().unwrap())
}

#[test]
fn every_documented_login_is_accepted() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/how-to/secure.md")).unwrap();
    let blocks = page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let logins: Vec<_> = blocks.filter(|block| block.contains("security.protocol") || block.starts_with('[')).collect();
    assert_eq!(logins.len(), 7, "{logins:?}");
    let (certificate, key) = certificate();
    for login in logins {
        let setup = Setup::new("", ID);
        let login = login.replace("/etc/unseen/", &format!("{}/", setup.0.path().display()));
        let login = login.replace("/run/secrets/", &format!("{}/", setup.0.path().display()));
        let section = if login.starts_with('[') { "" } else { "[kafka.properties]\n" };
        for (name, text) in [("ca.pem", &*certificate), ("client.pem", &certificate), ("client.key", &key)] {
            fs::write(setup.path(name), text).unwrap();
        }
        for name in ["kafka-password", "kafka-client-secret", "registry-client-secret"] {
            fs::write(setup.path(name), "hunter2\n").unwrap();
        }
        let file = setup.path("unseen.toml");
        let text = fs::read_to_string(&file).unwrap().replacen("[state]", &format!("{section}{login}\n[state]"), 1);
        fs::write(file, text).unwrap();
        let (code, printed, error) = setup.run(&["check", "--print"]);
        assert_eq!(code, Some(0), "{login}\n{error}");
        assert!(!printed.contains("hunter2"), "{printed}");
    }
}

#[test]
fn kerberos_is_rejected_with_the_reason() {
    let setup = Setup::new("[kafka.properties]\n\"security.protocol\" = \"SASL_SSL\"\n\"sasl.mechanism\" = \"GSSAPI\"", ID);
    let (code, _, error) = setup.run(&["check"]);
    assert!(code == Some(78) && error.contains("GSSAPI (Kerberos) is not supported, because unseen is built without"), "{error}");
}

//! Tests of single values: quantities with units, listen addresses, and certificates.

use super::{MINIMAL, load, refused};

#[test]
fn tls_requires_a_certificate_and_a_private_key() {
    let tls = |text: &str| load(&format!("{MINIMAL}\n[serve]\ntls = {text}"));
    assert_eq!(load(MINIMAL).unwrap().serve.tls, None);
    // A worker with the same configuration may not have the files, so they need not exist.
    let both = "certificate_location = \"/no/crt\", key_location = \"/no/key\"";
    assert!(tls(&format!("{{ {both}, client_ca_location = \"/no/ca\" }}")).is_ok());
    let error = tls("{ client_ca_location = \"/no/ca\" }").unwrap_err();
    assert!(error.contains("serve.tls.certificate_location: required") && error.contains("serve.tls.key_location: required"), "{error}");
}

#[test]
fn listen_is_an_address_or_off() {
    let listen = |to: &str| load(&format!("{MINIMAL}\n[http]\nlisten = {to:?}")).map(|config| config.http.listen);
    assert_eq!(load(MINIMAL).unwrap().http.listen, "127.0.0.1:8080".parse().ok());
    assert_eq!(listen("[::]:0").unwrap(), "[::]:0".parse().ok());
    assert_eq!(listen("off").unwrap(), None);
    for wrong in ["8080", "localhost", "", "on"] {
        assert!(listen(wrong).unwrap_err().contains("http.listen: expected an address and a port"), "{wrong}");
    }
}

#[test]
fn quantities_have_units() {
    for (written, keys) in [
        ("5000", 5000),
        ("\"1_000_000\"", 1_000_000),
        ("1_000", 1000),
        ("\"10 k\"", 10_000),
        ("\"10K\"", 10_000),
        ("\"2g\"", 2_000_000_000),
        ("\"1G\"", 1_000_000_000),
    ] {
        assert_eq!(load(&MINIMAL.replace("\"10M\"", written)).unwrap().topics[0].filter.capacity, Some(keys), "{written}");
    }
    for written in ["-1", "1.5", "\"\"", "\"k\"", "\"10m\"", "\"1e3\"", "\"99999999999G\"", "true", "[]"] {
        let errors = refused("\"10M\"", written);
        assert!(errors.starts_with("x.toml: topics[0].filter.capacity: expected a whole number"), "{written}: {errors}");
    }
    for written in ["0", "\"200G\"", "9223372036854775807"] {
        assert!(refused("\"10M\"", written).contains("expected a number from 1 to 100000000000"), "{written}");
    }
    for written in ["0", "1", "nan", "\"x\"", "-0.1"] {
        let errors = refused("capacity = \"10M\"", &format!("capacity = 1, false_positive_rate = {written}"));
        assert!(errors.contains("false_positive_rate: expected a rate between 0 and 1"), "{written}: {errors}");
    }
    assert_eq!(
        refused("\"10M\"", "\"10m\""),
        "x.toml: topics[0].filter.capacity: expected a whole number such as 5000, \"200k\", or \"10M\", got \"10m\"; for millions, write M instead of m"
    );
    for (written, bytes) in [
        ("\"64kB\"", 64_000),
        ("\"64kb\"", 64_000),
        ("\"1 GiB\"", 1 << 30),
        ("\"1GIB\"", 1 << 30),
        ("\"1mib\"", 1 << 20),
        ("5", 5),
        ("\"5b\"", 5),
    ] {
        let config = load(&format!("state.max_write_rate = {written}\n{MINIMAL}")).unwrap();
        assert_eq!(config.state.max_write_rate, bytes);
    }
    for written in ["24", "\"24\"", "\"-1h\"", "\"11years\"", "{ keys = 5, x = 1 }", "{ keys = -1 }", "{}", "[]"] {
        let errors = refused("\"24h\"", written);
        assert!(errors.starts_with("x.toml: topics[0].window: expected a duration such as"), "{written}: {errors}");
    }
}

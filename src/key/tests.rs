use super::*;
use siphasher::sip128::SipHasher24;
use xxhash_rust::xxh3::xxh3_128;

fn spec(pointers: &[&str]) -> KeySpec {
    KeySpec::new(pointers.iter().map(|pointer| Part::Field((*pointer).to_owned())).collect()).unwrap()
}

fn of(spec: &KeySpec, value: &str) -> Result<Fingerprint, Box<Invalid>> {
    spec.fingerprint(&Record { value: Some(value.as_bytes()), ..Record::default() }, &mut Scratch::default())
}

fn reason(spec: &KeySpec, value: &str) -> Reason {
    of(spec, value).unwrap_err().reason
}

#[test]
fn reads_the_field_and_nothing_else() {
    let id = spec(&["/id"]);
    let key = of(&id, r#"{"id":"a","rest":[1,{"id":"b"}]}"#).unwrap();
    assert_eq!(key, of(&id, r#"{"rest":null,"id":"a"}"#).unwrap());
    assert_ne!(key, of(&id, r#"{"id":"b"}"#).unwrap());
}

#[test]
fn follows_pointers_into_objects_and_arrays() {
    let deep = spec(&["/a/1/b~1c~0d"]);
    assert_eq!(of(&deep, r#"{"a":[0,{"b/c~d":7}]}"#).unwrap(), of(&spec(&["/x"]), r#"{"x":7}"#).unwrap());
    assert_eq!(reason(&deep, r#"{"a":[0]}"#), Reason::MissingKey);
    assert_eq!(reason(&deep, r#"{"a":"text"}"#), Reason::MissingKey);
}

#[test]
fn values_of_different_types_are_different_keys() {
    let id = spec(&["/id"]);
    let values = ["1", "\"1\"", "1.0", "true", "\"true\"", "\"null\"", "\"\"", "[1]", "{}"];
    for (i, a) in values.iter().enumerate() {
        for (j, b) in values.iter().enumerate() {
            let same = of(&id, &format!("{{\"id\":{a}}}")) == of(&id, &format!("{{\"id\":{b}}}"));
            assert_eq!(same, i == j, "{a} and {b}");
        }
    }
}

#[test]
fn long_numbers_keep_all_their_digits() {
    let id = spec(&["/id"]);
    assert_ne!(of(&id, r#"{"id":123456789012345678901}"#), of(&id, r#"{"id":123456789012345678902}"#));
}

#[test]
fn null_is_not_missing() {
    let pair = spec(&["/user", "/item"]);
    let with_null = of(&pair, r#"{"user":null,"item":5}"#).unwrap();
    assert_ne!(with_null, of(&pair, r#"{"user":5,"item":null}"#).unwrap());
    assert_eq!(reason(&pair, r#"{"item":5}"#), Reason::MissingKey);
    assert_eq!(reason(&pair, r#"{"user":null,"item":null}"#), Reason::NullKey);
    assert_eq!(reason(&spec(&["/id"]), r#"{"id":null}"#), Reason::NullKey);
}

#[test]
fn escapes_are_decoded_before_hashing() {
    let id = spec(&["/id"]);
    assert_eq!(of(&id, r#"{"id":"caf\u00e9\n"}"#), of(&id, "{\"id\":\"café\\u000a\"}"));
    assert_eq!(of(&id, r#"{"\u0069d":"a"}"#), of(&id, r#"{"id":"a"}"#));
}

#[test]
fn of_two_equal_fields_the_last_counts() {
    assert_eq!(of(&spec(&["/id"]), r#"{"id":1,"id":2}"#), of(&spec(&["/id"]), r#"{"id":2}"#));
    assert_eq!(reason(&spec(&["/a/id"]), r#"{"a":{"id":1},"a":{}}"#), Reason::MissingKey);
    let header = KeySpec::new(vec![Part::Header("id".into())]).unwrap();
    let last = |headers: &[(&str, Option<&[u8]>)]| header.fingerprint(&Record { headers, ..Record::default() }, &mut Scratch::default());
    assert_eq!(last(&[("id", Some(b"1")), ("id", Some(b"2"))]), last(&[("id", Some(b"2"))]));
    assert_eq!(last(&[("ID", Some(b"2"))]).unwrap_err().reason, Reason::MissingKey);
}

#[test]
fn parts_do_not_run_into_each_other() {
    let pair = spec(&["/a", "/b"]);
    assert_ne!(of(&pair, r#"{"a":"xy","b":"z"}"#), of(&pair, r#"{"a":"x","b":"yz"}"#));
}

#[test]
fn a_pointer_may_be_the_beginning_of_another() {
    let both = spec(&["/a", "/a/b"]);
    assert_ne!(of(&both, r#"{"a":{"b":1}}"#), of(&both, r#"{"a":{"b":2}}"#));
    assert_eq!(reason(&both, r#"{"a":1}"#), Reason::MissingKey);
}

#[test]
fn a_number_too_large_for_a_float_is_a_key() {
    let both = spec(&["/a", "/a/b"]);
    assert_eq!(reason(&both, r#"{"a":1e999}"#), Reason::MissingKey);
    assert_ne!(of(&spec(&["/a"]), r#"{"a":1e999}"#).unwrap(), of(&spec(&["/a"]), r#"{"a":1e998}"#).unwrap());
}

#[test]
fn a_field_is_read_by_itself() {
    let time = Field::new("/meta/time").unwrap();
    assert_eq!(time.text(br#"{"meta":{"time":17}}"#).as_deref(), Some("17"));
    assert_eq!(time.text(br#"{"meta":{"time":"\u0031"}}"#).as_deref(), Some("1"));
    for value in [r#"{"meta":{"time":null}}"#, r#"{"meta":{}}"#, r#"{"meta":{"time":17}"#, ""] {
        assert_eq!(time.text(value.as_bytes()), None, "{value}");
    }
    assert!(Field::new("time").is_err());
}

#[test]
fn a_string_field_and_the_record_key_are_one_id() {
    let by_key = KeySpec::new(vec![Part::RecordKey]).unwrap();
    let record = Record { key: Some(b"abc"), ..Record::default() };
    assert_eq!(by_key.fingerprint(&record, &mut Scratch::default()), of(&spec(&["/id"]), r#"{"id":"abc"}"#));
}

#[test]
fn a_field_of_the_record_key_is_like_one_of_the_value() {
    let key = KeySpec::new(vec![Part::KeyField("/id".into())]).unwrap();
    let of_key = |text: Option<&str>| {
        let record = Record { key: text.map(str::as_bytes), value: Some(b"not JSON"), ..Record::default() };
        key.fingerprint(&record, &mut Scratch::default())
    };
    assert_eq!(of_key(Some(r#"{"id":7}"#)), of(&spec(&["/id"]), r#"{"id":7}"#));
    assert_eq!(of_key(Some("{}")).unwrap_err().reason, Reason::MissingKey);
    assert_eq!(of_key(None).unwrap_err().message, "the record has no field `/id` of the record key");
    let broken = of_key(Some("{")).unwrap_err();
    assert!(broken.reason == Reason::Malformed && broken.message.starts_with("the record key is not JSON: "), "{broken}");
    let optional = KeySpec::new(vec![Part::Optional(Box::new(Part::KeyField("/id".into())))]).unwrap();
    for key in [&key, &optional] {
        let record = Record { key: Some(br#"{"id":"\ud800"}"#), ..Record::default() };
        let invalid = key.fingerprint(&record, &mut Scratch::default()).unwrap_err();
        assert!(invalid.message.starts_with("the record key "), "{invalid}");
    }
    let both = KeySpec::new(vec![Part::KeyField("/id".into()), Part::Field("/id".into())]).unwrap();
    let record = Record { key: Some(br#"{"id":1}"#), value: Some(br#"{"id":2}"#), ..Record::default() };
    assert_eq!(both.fingerprint(&record, &mut Scratch::default()), of(&spec(&["/a", "/b"]), r#"{"b":2,"a":1}"#));
    let deleted = Record { value: None, ..record };
    assert!(key.fingerprint(&deleted, &mut Scratch::default()).is_ok(), "its key is enough");
    assert_eq!(both.fingerprint(&deleted, &mut Scratch::default()).unwrap_err().reason, Reason::Tombstone);
}

#[test]
fn the_message_about_broken_json_shows_the_position() {
    for text in ["", "{", "{\"id\":1", "{\"id\":1}}", "{\"id\":1} x", "{\"id\":tru}", "{\"id\":\"\\ud800\"}", "{\"id\":1,}"] {
        assert_eq!(reason(&spec(&["/id"]), text), Reason::Malformed, "{text}");
    }
    let error = of(&spec(&["/id"]), "{\"id\":1").unwrap_err();
    assert!(error.message.contains("line 1 column 7"), "{error}");
    let mut scratch = Scratch::default();
    let not_text = Record { value: Some(b"{\"id\":\"\xff\"}"), ..Record::default() };
    assert_eq!(spec(&["/id"]).fingerprint(&not_text, &mut scratch).unwrap_err().reason, Reason::Malformed);
}

fn message(spec: &KeySpec, value: &[u8], headers: &[(&str, Option<&[u8]>)]) -> String {
    let record = Record { value: Some(value), headers, ..Record::default() };
    spec.fingerprint(&record, &mut Scratch::default()).unwrap_err().message
}

#[test]
fn values_in_another_encoding_are_named() {
    for spec in [spec(&["/id"]), KeySpec::new(vec![Part::Content { except: vec![] }]).unwrap()] {
        for (value, words) in [
            (&b"\xef\xbb\xbf{\"id\":1}"[..], "it begins with a byte-order mark; make the producer write UTF-8 without one"),
            (b"{\0\"\0", "key must be a string"),
            (b"\xff\xfe{\0}\0", "it begins with the byte-order mark of UTF-16; make the producer write UTF-8"),
            (
                b"\x1f\x8b\x08\x00\x00",
                "it is compressed with gzip; set value_encoding = \"gzip\", or send it uncompressed and set compression.type = gzip on the producer",
            ),
            (b"\x28\xb5\x2f\xfd\x24", "it is compressed with zstd; send it uncompressed and set compression.type = zstd on the producer"),
        ] {
            let message = message(&spec, value, &[]);
            assert!(message.starts_with(&format!("the record value is not JSON: {words}")), "{message}");
        }
    }
}

#[test]
fn the_message_about_a_missing_field_shows_where_its_pointer_ends() {
    for (pointer, value, words) in [
        (
            "/Message/Records/0/s3/object/key",
            r#"{"Type": "Notification", "Message": "{\"Records\": [{\"s3\": {\"object\": {\"key\": \"a.csv\"}}}]}"}"#,
            ": `/Message` is a string that contains JSON; write { field = \"/Message\", then = \"/Records/0/s3/object/key\" }",
        ),
        (
            "/id",
            r#""{\"id\": 1}""#,
            ": the record value is a JSON string that contains JSON; fix the producer, which encodes it twice, or write { field = \"\", then = \"/id\" }",
        ),
        ("/user/id", r#"{"user": "ann"}"#, ": `/user` is a string"),
        ("/user/id", r#"{"user": null}"#, ": `/user` is null"),
        ("/a~1b/0/id", r#"{"a/b": [7]}"#, ": `/a~1b/0` is a number"),
        ("/user/id", r#"{"user": [{"id": 1}]}"#, ": `/user` is a list"),
        ("/user/id", r#"{"user": {"ID": 1}}"#, ", but it has `/user/ID`: field names are case-sensitive"),
        ("/id", r#"{"key": "id"}"#, ""),
        ("/id", r#""id""#, ""),
        ("/user/id", r#"{"user": {}}"#, ""),
    ] {
        let wanted = format!("the record has no field `{pointer}`{words}");
        assert_eq!(message(&spec(&[pointer]), value.as_bytes(), &[]), wanted);
        assert_eq!(message(&spec(&["", pointer]), value.as_bytes(), &[]), wanted);
    }
}

#[test]
fn a_header_in_another_case_is_named() {
    let spec = KeySpec::new(vec![Part::Header("X-Shopify-Event-Id".to_owned())]).unwrap();
    let header = [("x-shopify-event-id", Some(&b"e-1"[..]))];
    assert_eq!(
        message(&spec, b"x", &header),
        "the record has no header `X-Shopify-Event-Id`, but it has header `x-shopify-event-id`: header names are case-sensitive without ignore_case = true"
    );
    assert_eq!(message(&spec, b"x", &[("x", None)]), "the record has no header `X-Shopify-Event-Id`");
}

#[test]
fn a_tombstone_has_no_key_where_the_key_needs_the_value() {
    let record = Record { key: Some(b"a"), ..Record::default() };
    let reason =
        |parts: &[Part]| KeySpec::new(parts.to_vec()).unwrap().fingerprint(&record, &mut Scratch::default()).map_err(|it| it.reason);
    let json = Part::Field("/id".to_owned());
    let content = Part::Content { except: Vec::new() };
    for parts in [&[json.clone()][..], &[Part::RecordKey, json], &[Part::RecordValue], &[Part::RecordKey, Part::RecordValue], &[content]] {
        assert_eq!(reason(parts), Err(Reason::Tombstone), "{parts:?}");
    }
    assert!(reason(&[Part::RecordKey]).is_ok());
}

#[test]
fn content_can_be_combined_with_other_parts_and_a_secret() {
    let of = |parts: &[Part], hashing: &Hashing, value: &str| {
        let spec = KeySpec::new(parts.to_vec()).unwrap().with_hashing(*hashing);
        spec.fingerprint(&Record { key: Some(b"k"), value: Some(value.as_bytes()), headers: &[] }, &mut Scratch::default())
            .map_err(|it| it.reason)
    };
    let content = || Part::Content { except: vec!["/ts".to_owned()] };
    let (one, other) = (r#"{"id":1,"ts":1,"x":{}}"#, r#" {"x": {}, "id": 1}"#);
    let secret = Hashing::SipHash([7; 16]);
    for parts in [&[content()][..], &[Part::RecordKey, content()], &[Part::Field("/id".to_owned()), content(), content()]] {
        for hashing in [&Hashing::Xxh3, &secret] {
            assert_eq!(of(parts, hashing, one), of(parts, hashing, other), "{parts:?}");
            assert_ne!(of(parts, hashing, one), of(parts, hashing, r#"{"id":1,"x":[]}"#), "{parts:?}");
        }
    }
    assert_ne!(of(&[content()], &Hashing::Xxh3, one), of(&[content()], &secret, one));
    assert_ne!(of(&[content()], &Hashing::Xxh3, "{}"), of(&[Part::RecordValue], &Hashing::Xxh3, "{}"));
    assert_eq!(of(&[content()], &Hashing::Xxh3, "null"), Err(Reason::NullKey));
    assert_eq!(of(&[content()], &Hashing::Xxh3, "{"), Err(Reason::Malformed));
}

#[test]
fn an_event_is_the_same_in_both_modes() {
    let spec = |names: &[&str]| KeySpec::new(names.iter().map(|name| Part::CloudEvent((*name).to_owned())).collect()).unwrap();
    let of = |names: &[&str], headers: &[(&str, &str)], value: Option<&str>| {
        let headers: Vec<_> = headers.iter().map(|&(name, value)| (name, Some(value.as_bytes()))).collect();
        let record = Record { key: None, value: value.map(str::as_bytes), headers: &headers };
        spec(names).fingerprint(&record, &mut Scratch::default()).map_err(|it| (it.reason, it.message))
    };
    let preset = &["source", "id"];
    let structured = [("content-type", "application/cloudevents+json; charset=utf-8")];
    let binary =
        |id| of(preset, &[("ce_specversion", "1.0"), ("ce_id", id), ("ce_source", "/sensors/1"), ("content-type", "text/plain")], None);
    let whole =
        |id: &str| of(preset, &structured, Some(&format!(r#"{{"specversion":"1.0","id":{id},"source":"/sensors/1","data":{{"id":7}}}}"#)));
    assert_eq!(binary("a-1").unwrap(), whole(r#""a-1""#).unwrap());
    assert_eq!(binary("é").unwrap(), whole(r#""\u00e9""#).unwrap());
    assert_eq!(binary("7").unwrap(), whole("7").unwrap());
    assert_ne!(binary("a-1").unwrap(), binary("a-2").unwrap());
    // In binary mode, the attributes are headers, and a member of the value is not an attribute.
    let missing = |error: Result<_, (Reason, String)>| error.unwrap_err();
    let message = "the record has no CloudEvents attribute `source`".to_owned();
    assert_eq!(missing(of(preset, &[("ce_id", "1")], Some(r#"{"source":"a","id":"1"}"#))), (Reason::MissingKey, message.clone()));
    assert_eq!(missing(of(preset, &structured, Some(r#"{"id":"1"}"#))), (Reason::MissingKey, message.clone()));
    assert_eq!(missing(of(preset, &structured, Some(r#"{"source":null,"id":"1"}"#))), (Reason::MissingKey, message));
    assert_eq!(missing(of(preset, &structured, None)).0, Reason::Tombstone);
    assert_eq!(missing(of(preset, &structured, Some("{"))).0, Reason::Malformed);
    let batch = [("content-type", "application/cloudevents-batch+json"), ("ce_id", "1"), ("ce_source", "s")];
    assert_eq!(missing(of(preset, &batch, Some("[]"))).0, Reason::MissingKey);
    assert!(of(&["subject"], &[("ce_subject", "x")], None).is_ok());
    assert!(KeySpec::new(vec![Part::CloudEvent("a/b".to_owned())]).is_err());
    assert!(spec(preset).reads_headers());
}

#[test]
fn malformed_pointers_are_refused() {
    for pointer in ["id", "/a~2", "/~", "/~~01", "/~~10", "/a/~01~/b"] {
        assert!(KeySpec::new(vec![Part::Field(pointer.to_owned())]).is_err(), "{pointer}");
    }
    for pointer in ["/~01", "/~10~0", "/a~1b/~0"] {
        assert!(KeySpec::new(vec![Part::Field(pointer.to_owned())]).is_ok(), "{pointer}");
    }
    assert!(KeySpec::new(vec![]).is_err());
}

#[test]
fn the_encoding_does_not_change() {
    // Stored filters and changelogs contain these fingerprints: a change here makes every key unseen again.
    assert_eq!(of(&spec(&["/id"]), r#"{"id":"news-1"}"#).unwrap(), Fingerprint(xxh3_128(b"\x01\x06\0\0\0\0\0\0\0news-1")));
    assert_eq!(of(&spec(&["/id"]), r#"{"id":17}"#).unwrap(), Fingerprint(xxh3_128(b"\x02\x02\0\0\0\0\0\0\x0017")));
}

#[test]
fn a_key_of_one_field_is_encoded_as_any_other_whatever_its_length() {
    for length in 0..200 {
        let text = "x".repeat(length);
        let encoded = [&[1_u8][..], &(length as u64).to_le_bytes(), text.as_bytes()].concat();
        for hashing in [Hashing::Xxh3, Hashing::SipHash([3; 16])] {
            let (id, expected) = (spec(&["/id"]).with_hashing(hashing), hashing.fingerprint(&encoded));
            assert_eq!(of(&id, &format!(r#"{{"id":"{text}"}}"#)), Ok(expected), "{length}");
            assert_eq!(of(&id, &format!(r#"{{"id":"{}"}}"#, "\\u0078".repeat(length))), Ok(expected), "{length}, escaped");
        }
    }
}

#[test]
fn siphash_hashes_the_same_encoding() {
    let secret = [7; 16];
    let keyed = spec(&["/id", "/n"]).with_hashing(Hashing::SipHash(secret));
    let digest = SipHasher24::new_with_key(&secret).hash(b"\x01\x06\0\0\0\0\0\0\0news-1\x02\x02\0\0\0\0\0\0\x0017").as_u128();
    assert_eq!(of(&keyed, r#"{"id":"news-1","n":17}"#).unwrap(), Fingerprint(digest));
    assert_eq!(reason(&keyed, r#"{"id":"news-1"}"#), Reason::MissingKey);
}

#[test]
fn another_hash_or_secret_gives_another_fingerprint() {
    let with = |hashing| of(&spec(&["/id"]).with_hashing(hashing), r#"{"id":"a"}"#).unwrap();
    let of_each = [Hashing::Xxh3, Hashing::SipHash([1; 16]), Hashing::SipHash([2; 16])].map(with);
    assert_eq!(with(Hashing::default()), of(&spec(&["/id"]), r#"{"id":"a"}"#).unwrap());
    assert!(of_each[0] != of_each[1] && of_each[1] != of_each[2] && of_each[0] != of_each[2]);
}

#[test]
fn a_specification_shows_no_secret() {
    let keyed = spec(&["/id"]).with_hashing(Hashing::SipHash([0x5a; 16]));
    assert!(keyed.hashing_id().starts_with("siphash "));
    let shown = format!("{keyed:?} {keyed}");
    assert!(shown.contains(&keyed.hashing_id()) && !shown.contains("90, 90") && !shown.contains("5a5a"), "{shown}");
}

proptest::proptest! {
    #[test]
    fn agrees_with_a_full_parse(text in ".{0,12}", number in proptest::num::i64::ANY, before in proptest::bool::ANY) {
        let mut value = serde_json::json!({"n": number, "s": text});
        if before { value["a"] = serde_json::json!({"s": [number, text]}); }
        let json = value.to_string();
        let expected = serde_json::json!({"x": text, "y": number}).to_string();
        proptest::prop_assert_eq!(of(&spec(&["/s", "/n"]), &json), of(&spec(&["/x", "/y"]), &expected));
    }

    #[test]
    fn never_panics(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..64)) {
        let record = Record { key: None, value: Some(&bytes), headers: &[] };
        let _ = spec(&["/a", "/a/0"]).fingerprint(&record, &mut Scratch::default());
    }
}

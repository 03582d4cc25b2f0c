//! The option `--topic`: it selects one topic from a list, or one entry of an input.

use super::{ID, Setup};
use serde_json::Value;
use std::fs;

#[test]
fn commands_find_the_topics_of_a_list() {
    let setup = Setup::new("", ID);
    let text = fs::read_to_string(setup.path("unseen.toml")).unwrap();
    let text = text.replace("input = \"in\"\noutput = \"out\"", "input = [\"a\", \"b\"]\noutput = \"{input}.unseen\"");
    fs::write(setup.path("unseen.toml"), text).unwrap();
    let report: Value = serde_json::from_str(&setup.run(&["check", "--json"]).1).unwrap();
    let topics = report["topics"].as_array().unwrap().iter().map(|topic| (topic["input"].clone(), topic["output"].clone()));
    assert_eq!(topics.collect::<Vec<_>>(), [("a".into(), "a.unseen".into()), ("b".into(), "b.unseen".into())]);

    fs::write(setup.path("in.ndjson"), "{\"id\":1}\n{\"id\":1}\n").unwrap();
    let input = setup.path("in.ndjson");
    let input = input.to_str().unwrap();
    let (code, _, summary) = setup.run(&["replay", "--topic", "b", input]);
    assert_eq!(code, Some(0), "{summary}");
    let (code, _, error) = setup.run(&["replay", input]);
    assert!(code == Some(1) && error.contains("several topics; choose one with --topic: a, b"), "{error}");
    let (code, plan, error) = setup.run(&["plan", "--json", "--sample", input, "--topic", "b"]);
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(serde_json::from_str::<Value>(&plan).unwrap()["sample"]["distinct"], 1);
    let tests =
        "tests:\n  - name: of a list\n    topic: b\n    records: [{ value: { id: 1 }, expect: { verdict: unseen, output: b.unseen } }]\n";
    fs::write(setup.path("unseen.test.yaml"), tests).unwrap();
    let (code, said, error) = setup.run(&["test"]);
    assert_eq!(code, Some(0), "{said}{error}");

    let (code, printed, error) = setup.run(&["check", "--print"]);
    assert_eq!(code, Some(0), "{error}");
    fs::write(setup.path("unseen.toml"), &printed).unwrap();
    assert_eq!(setup.run(&["check", "--print"]).1, printed);
}

#[test]
fn an_entry_of_an_input_is_chosen_by_its_space() {
    let setup = Setup::new("", "space = \"orders-{input}\"\nwhen = { field = \"/type\", equals = \"order\" }\nkey = { field = \"/id\" }");
    let second = "[[topics]]\ninput = \"in\"\noutput = \"out\"\nwindow = \"1h\"\nfilter = { capacity = 1000 }\nkey = { field = \"/no\" }\n";
    let text = fs::read_to_string(setup.path("unseen.toml")).unwrap() + second;
    let lines = "{\"type\":\"order\",\"id\":1,\"no\":1}\n{\"type\":\"order\",\"id\":2,\"no\":2}\n{\"type\":\"view\",\"no\":3}\n";
    fs::write(setup.path("in.ndjson"), lines).unwrap();
    let input = setup.path("in.ndjson");
    // Returns the number of keys of the entry that `args` select. A record counts for the first entry that selects it.
    let keys = |args: &[&str]| {
        let (code, plan, error) = setup.run(&[&["plan", "--json", "--sample", input.to_str().unwrap()], args].concat());
        let keys = |plan: &str| serde_json::from_str::<Value>(plan).unwrap()["sample"]["distinct"].as_u64().unwrap();
        if code == Some(0) { Ok(keys(&plan)) } else { Err(error) }
    };
    let several = "`in` has several entries; choose one by its space: orders-in, in";
    fs::write(setup.path("unseen.toml"), &text).unwrap();
    assert_eq!((keys(&["--topic", "orders-in"]), keys(&["--topic", "in"])), (Ok(2), Ok(1)));
    assert!(keys(&[]).unwrap_err().contains(several));

    // The topic of the entry matches a pattern.
    fs::write(setup.path("unseen.toml"), text.replace("input = \"in\"", "input = { pattern = \"i.*\" }")).unwrap();
    assert_eq!((keys(&["--topic", "orders-in"]), keys(&["--topic", "in"])), (Ok(2), Ok(1)));
    assert!(keys(&["--topic", "views-in"]).unwrap_err().contains("expected one of a topic that matches \"i.*\", a topic"));

    // The pattern also matches a topic with the name of the space, so the name is ambiguous.
    fs::write(setup.path("unseen.toml"), text.replace("input = \"in\"", "input = { pattern = \".*in\" }")).unwrap();
    let error = keys(&["--topic", "orders-in"]).unwrap_err();
    assert!(error.contains("space `orders-in` belongs to several input topics that match a pattern: in, orders-in. Choose one"), "{error}");
    let only = ["--topic", "orders-in", "--set", "topics.0.input=in", "--set", "topics.1.input=in"];
    assert_eq!((keys(&only), keys(&["--topic", "in"])), (Ok(2), Ok(1)));
}

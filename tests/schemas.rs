//! Promise: the schemas in docs/ are those of what is served and printed.

use schemars::{JsonSchema, schema_for};
use unseen::checkpoint::stored::Inspection;
use unseen::status::Status;

fn is_written_down<T: JsonSchema>(name: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name);
    let made = serde_json::to_string_pretty(&schema_for!(T)).expect("JSON") + "\n";
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    if kept != made {
        let draft = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&draft, made).expect("a draft");
        panic!("docs/{name} is not what the types say; compare it with {}, and copy that", draft.display());
    }
}

#[test]
fn the_schema_of_the_status() {
    is_written_down::<Status>("status.schema.json");
}

#[test]
fn the_schema_of_an_inspection() {
    is_written_down::<Inspection>("inspect.schema.json");
}

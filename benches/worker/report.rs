//! The results of a command: its tables on the terminal, and raw figures, tables, and pictures in `docs/benchmarks`.

use crate::records::Load;
use crate::{Options, machine};
use serde::Serialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Prints a page. Also writes the page, its raw figures, and its pictures to files. Without `--out`, writes files only if the measurement
/// was complete and used the default load.
pub fn publish(options: &Options, name: &str, raw: &impl Serialize, page: &str, pictures: &[(&str, String)]) {
    println!("{page}");
    let Some(dir) = directory(options) else { return };
    let facts = machine::facts();
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    // The command in the result files lacks `--out`, because readers do not need the output directory.
    let told = arguments.iter().enumerate().filter(|(at, argument)| !(*argument == "--out" || (*at > 0 && arguments[at - 1] == "--out")));
    let command = told.fold("scripts/bench".to_owned(), |command, (_, argument)| command + " " + argument);
    let results = json!({ "command": command, "facts": facts, "results": serde_json::to_value(raw).expect("plain data") });
    std::fs::create_dir_all(&dir).expect("a directory");
    write(&dir, &format!("{name}.json"), &format!("{results:#}\n"));
    let title = name[..1].to_uppercase() + &name[1..];
    let shown: Vec<_> = pictures.iter().map(|(file, _)| format!("![{file}]({file}.svg)\n\n")).collect();
    let origin = format!("`{command}`: {}", machine::sentence(&facts));
    write(&dir, &format!("{name}.md"), &format!("# {title}\n\n{origin}\n\n{}{}\n", shown.concat(), page.trim_end()));
    for (file, picture) in pictures {
        write(&dir, &format!("{file}.svg"), picture);
    }
    eprintln!("results written to {}", dir.display());
}

fn directory(options: &Options) -> Option<PathBuf> {
    let is_usual = options.only.is_empty() && options.load == Load::Far;
    let usual = || is_usual.then(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/benchmarks"));
    options.out.clone().or_else(usual)
}

fn write(dir: &Path, file: &str, text: &str) {
    std::fs::write(dir.join(file), text).unwrap_or_else(|error| panic!("{file} cannot be written: {error}"));
}

pub fn named(name: &str, figures: impl Serialize) -> Value {
    json!({ "name": name, "runs": serde_json::to_value(figures).expect("plain data") })
}

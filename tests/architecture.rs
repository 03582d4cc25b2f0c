//! Checks the invariants of the source code that ARCHITECTURE.md states.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The parts of the crate, in reading order. A part may use only the parts before it.
const PARTS: [&str; 32] = [
    "record",
    "format",
    "key",
    "values",
    "content",
    "filter",
    "dedup",
    "changelog",
    "config",
    "route",
    "replay",
    "testing",
    "plan",
    "runtime",
    "stats",
    "oauth",
    "registry",
    "status",
    "fault",
    "checkpoint",
    "tls",
    "http",
    "broker",
    "kafka",
    "follower",
    "explain",
    "seed",
    "redrive",
    "serve",
    "worker",
    "sim",
    "cli",
];
/// The parts whose files never call each other in a cycle, directly or through other files.
const UNTANGLED: [&str; 9] = ["dedup", "changelog", "replay", "stats", "registry", "follower", "seed", "redrive", "worker"];
/// The pure parts. They use no I/O, no clock, no randomness, and no concurrency.
const PURE: [&str; 8] = ["record", "format", "key", "values", "content", "filter", "dedup", "changelog"];

/// Returns the Rust files in a directory and its subdirectories, except in directories named `target`.
fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("the directory can be read") {
        let path = entry.expect("the directory can be read").path();
        if path.is_dir() && !path.ends_with("target") {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Returns the path relative to `src` and the code of each Rust file. Comments are removed from the code.
fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let read = |path: PathBuf| {
        let name = path.strip_prefix(&root).expect("below src").to_string_lossy().replace('\\', "/");
        let text = fs::read_to_string(&path).expect("a source file can be read");
        let code = text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n");
        (name, code)
    };
    rust_files(&root).into_iter().map(read).collect()
}

/// The part of a file, such as `filter` for `filter/bloom.rs`.
fn part(file: &str) -> &str {
    file.split(['/', '.']).next().unwrap_or(file)
}

fn is_test(file: &str) -> bool {
    file.ends_with("tests.rs") || file.contains("/tests/")
}

/// Returns the files that contain `word` and are not in the parts of `allowed`.
fn named_outside(word: &str, allowed: &[&str]) -> Vec<String> {
    let files = sources().into_iter().filter(|(file, code)| !allowed.contains(&part(file)) && code.contains(word));
    files.map(|(file, _)| file).collect()
}

#[test]
fn only_kafka_uses_rdkafka() {
    assert_eq!(named_outside("rdkafka::", &["kafka"]), [""; 0]);
}

#[test]
fn only_checkpoint_uses_rocksdb() {
    assert_eq!(named_outside("rocksdb::", &["checkpoint"]), [""; 0]);
}

#[test]
fn only_the_command_line_uses_clap_and_anyhow() {
    assert_eq!(named_outside("clap", &["cli", "main"]), [""; 0]);
    assert_eq!(named_outside("anyhow", &["cli", "main"]), [""; 0]);
}

#[test]
fn the_core_is_pure() {
    let impure = [
        "std::fs",
        "std::io",
        "std::net",
        "std::thread",
        "std::sync",
        "std::time",
        "std::env",
        "SystemTime",
        "Instant",
        "tokio",
        "rand",
        "async ",
        "tracing",
    ];
    for (file, code) in sources() {
        if PURE.contains(&part(&file)) && !is_test(&file) {
            // These names are harmless: atomics only let several readers share a filter, `Arc` and `Once` share schemas and link them once,
            // and `Read` decodes from memory.
            let harmless = ["std::sync::atomic", "std::sync::Arc", "std::sync::Once", "std::io::Read as _"];
            let code = harmless.iter().fold(code, |code, word| code.replace(word, ""));
            for word in impure {
                assert!(!code.contains(word), "{file} is in the pure core and uses {word}");
            }
        }
    }
}

/// The simulation cannot control the system's clocks or librdkafka, so the worker must use them through traits. Threads of the standard
/// library are allowed if each runs as a `runtime::Task`, which the simulation controls.
#[test]
fn worker_uses_kafka_clocks_and_threads_only_through_traits() {
    let outside = ["rdkafka::", "Instant::now(", "SystemTime", "thread::sleep", ".elapsed(", "crate::kafka"];
    // Exceptions: the id of a state directory is generated once, and a follower starts librdkafka.
    let exempt = [("checkpoint/store/instance.rs", "SystemTime"), ("follower/mod.rs", "crate::kafka")];
    for (file, code) in sources() {
        let is_behind = ["broker", "changelog", "checkpoint", "follower", "worker"].contains(&part(&file));
        let code = code.split("#[cfg(test)]").next().unwrap_or("");
        if !is_behind || is_test(&file) {
            continue;
        }
        for word in outside.into_iter().filter(|word| !exempt.contains(&(&file, word))) {
            assert!(!code.contains(word), "{file} names {word}");
        }
        assert!(!code.contains("thread::Builder") || code.contains("Task::new") || code.contains("task.run"), "{file} starts a thread");
    }
}

#[test]
fn parts_use_only_earlier_parts() {
    for (file, code) in sources() {
        let Some(own) = PARTS.iter().position(|&name| name == part(&file)) else { continue };
        for below in &PARTS[own + 1..] {
            assert!(!code.contains(&format!("crate::{below}")), "{file} uses {below}, which is below it");
        }
    }
}

#[test]
fn the_library_lists_its_parts_in_reading_order() {
    let (_, lib) = sources().into_iter().find(|(file, _)| file == "lib.rs").expect("src/lib.rs");
    let listed: Vec<_> =
        lib.lines().filter_map(|line| line.strip_prefix("pub ").unwrap_or(line).strip_prefix("mod ")?.strip_suffix(';')).collect();
    assert_eq!(listed, PARTS);
}

#[test]
fn all_fault_points_are_listed() {
    let passed = |code: &str, call: &str| {
        let call = format!("fault::{call}(\"");
        let names = code.split(&call).skip(1).filter_map(|rest| rest.split('"').next());
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    let mut found: Vec<_> = sources().iter().flat_map(|(_, code)| [passed(code, "point"), passed(code, "step")].concat()).collect();
    let mut listed = unseen::fault::POINTS.to_vec();
    found.sort_unstable();
    listed.sort_unstable();
    assert_eq!(found, listed, "every fault point must be passed at one place and be listed in fault::POINTS");
}

#[test]
fn simulation_must_detect_every_defect() {
    let simulation = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/simulation");
    let read = |path: &Path| fs::read_to_string(path).expect("a test");
    let quoted = |text: &str, before: &str| {
        let names = text.split(before).skip(1).filter_map(|rest| rest.split('"').next());
        names.map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let found: BTreeSet<_> = sources().iter().flat_map(|(_, code)| quoted(code, "fault::defect(\"")).collect();
    let drawn = quoted(&read(&simulation.join("defects.rs")), "Defect { name: \"");
    let plans: String = rust_files(&simulation.join("plans")).iter().map(|path| read(path)).collect();
    let planned = &quoted(&plans, "run(&plan, Some(\"") | &quoted(&plans, "check_kept(\"");
    assert_eq!(found, &drawn | &planned);
}

#[test]
fn release_has_no_fault_points() {
    let read = |name| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).expect("a file of the repository");
    let metadata = read("Cargo.toml");
    assert!(metadata.contains("\ndefault = [\"cli\"]\n"), "the default features have changed");
    for feature in ["cli = ", "worker = "] {
        let line = metadata.lines().find(|line| line.starts_with(feature)).expect("the feature");
        assert!(!line.contains("faults"), "{line}");
    }
    for built_by in ["Dockerfile", "scripts/demo"] {
        assert!(!read(built_by).contains("--features") && !read(built_by).contains("--all-features"), "{built_by}");
    }
}

#[test]
fn every_module_documents_its_responsibility() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (file, _) in sources() {
        let text = fs::read_to_string(root.join(&file)).expect("a source file can be read");
        assert!(file.ends_with("tests.rs") || text.starts_with("//! "), "{file} does not start with a module comment");
    }
}

#[test]
fn files_stay_small() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for file in ["src", "tests", "benches", "examples", "fuzz"].iter().flat_map(|dir| rust_files(&root.join(dir))) {
        let lines = fs::read_to_string(&file).expect("a source file can be read").lines().count();
        assert!(lines <= 500, "{} has {lines} lines; split it by subject", file.display());
    }
}

/// The path of a module from the library's root: `key` for `key/mod.rs`, and `key`, `lookup` for `key/lookup.rs`.
type Module = Vec<String>;

fn module(file: &str) -> Module {
    let path = file.trim_end_matches(".rs").trim_end_matches("/mod");
    path.split('/').map(str::to_owned).collect()
}

/// Expands a `use` tree: `a::{b, c}` becomes `a::b` and `a::c`.
fn paths(tree: &str) -> Vec<String> {
    let Some((head, rest)) = tree.split_once('{') else {
        return vec![tree.split(" as ").next().unwrap_or(tree).trim().to_owned()];
    };
    let (mut depth, mut branches) = (0, vec![String::new()]);
    for letter in rest[..rest.rfind('}').expect("a tree is closed")].chars() {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        match branches.last_mut() {
            Some(branch) if letter != ',' || depth > 0 => branch.push(letter),
            _ => branches.push(String::new()),
        }
    }
    let branches = branches.iter().filter(|branch| !branch.trim().is_empty());
    branches.flat_map(|branch| paths(branch)).map(|path| format!("{}{path}", head.trim())).collect()
}

/// Returns the paths that a file re-exports, and the other paths that it uses. Ignores the tests in the file.
fn used(code: &str) -> (Vec<String>, Vec<String>) {
    let code = code.split("#[cfg(test)]\nmod ").next().unwrap_or(code);
    let (mut exported, mut used) = (Vec::new(), Vec::new());
    // `cargo fmt` ends each declaration with a semicolon and a newline.
    for item in code.split(";\n") {
        let begin = item.lines().position(|line| line.starts_with("use ") || line.starts_with("pub") && line.contains(" use "));
        if let Some(begin) = begin {
            let declaration = item.lines().skip(begin).collect::<String>();
            let (visibility, tree) = declaration.split_once("use ").expect("a declaration");
            if visibility.is_empty() { &mut used } else { &mut exported }.extend(paths(tree));
        } else {
            let words = item.split(|letter: char| !letter.is_alphanumeric() && !"_:".contains(letter));
            used.extend(words.filter(|word| word.starts_with("crate::") || word.starts_with("super::")).map(str::to_owned));
        }
    }
    (exported, used)
}

/// Resolves a path in a module to a path from the library's root. Returns `None` for a path into another crate.
fn absolute(own: &Module, path: &str, modules: &BTreeSet<Module>) -> Option<Module> {
    let names: Vec<_> = path.split("::").map(str::to_owned).collect();
    let up = names.iter().take_while(|name| *name == "super").count();
    let child = [&own[..], &names[..1]].concat();
    match &*names[0] {
        "crate" => Some(names[1..].to_vec()),
        "self" => Some([&own[..], &names[1..]].concat()),
        "super" => Some([&own[..own.len().checked_sub(up)?], &names[up..]].concat()),
        _ => modules.contains(&child).then(|| [&own[..], &names[..]].concat()),
    }
}

/// Returns the modules that each module uses. A re-exported name counts for the module that defines it. Ignores uses between a module and
/// the modules inside it, because such uses do not count as cycles.
fn uses() -> BTreeMap<Module, BTreeSet<Module>> {
    let files: BTreeMap<_, _> =
        sources().into_iter().filter(|(file, _)| !is_test(file)).map(|(file, code)| (module(&file), code)).collect();
    let modules: BTreeSet<_> = files.keys().cloned().collect();
    let mut exports: BTreeMap<Module, Module> = BTreeMap::new();
    for (own, code) in &files {
        for path in used(code).0.iter().filter_map(|path| absolute(own, path, &modules)) {
            let name = path.last().expect("a name").clone();
            exports.insert([&own[..], &[name]].concat(), path);
        }
    }
    let owner = |mut path: Module| {
        loop {
            let within = (0..=path.len()).rev().find(|&length| modules.contains(&path[..length]))?;
            match path.get(..=within).and_then(|name| exports.get(name)).filter(|&target| *target != path[..=within]) {
                Some(target) => path = target.clone(),
                None => return Some(path[..within].to_vec()),
            }
        }
    };
    let is_related = |a: &Module, b: &Module| a.starts_with(b) || b.starts_with(a);
    let of = |own: &Module, code: &str| {
        let paths = used(code).1;
        let owners = paths.iter().filter_map(|path| owner(absolute(own, path, &modules)?));
        owners.filter(|other| !is_related(own, other)).collect()
    };
    files.iter().map(|(own, code)| (own.clone(), of(own, code))).collect()
}

/// A function: the type of its `impl` block, or an empty string for a free function, and its name.
type Function = (String, String);

/// A call: the type of the `impl` block that contains the call, the qualifier (`self.`, `.`, `Type::`, or empty), and the name.
type Call = (String, String, String);

/// Returns the functions of a file and the calls and paths in it. Relies on the format of `cargo fmt`: a top-level block ends with a brace
/// at the start of a line.
fn functions(code: &str) -> (BTreeSet<Function>, Vec<Call>) {
    let code = code.split("#[cfg(test)]\nmod ").next().unwrap_or(code);
    let (mut defined, mut calls) = (BTreeSet::new(), Vec::new());
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    for block in code.split("\n}\n") {
        let header = block.lines().find_map(|line| line.strip_prefix("impl")).unwrap_or("");
        // Finds ` Worker` in `<B: Broker> Worker<B> {` and in `<B: Broker> Default for Worker<B> {`.
        let subject = header.rsplit_once(" for").map_or(header, |(_, subject)| subject);
        let own = subject.split('>').find_map(|text| text.split('<').next().filter(|name| name.starts_with(' ')));
        let own = own.unwrap_or("").trim_matches([' ', '{']).to_owned();
        let mut rest = block;
        while let Some(begin) = rest.find(is_name) {
            let end = rest[begin..].find(|letter| !is_name(letter)).map_or(rest.len(), |length| begin + length);
            let (before, name, after) = (block[..block.len() - rest.len() + begin].trim_end(), &rest[begin..end], &rest[end..]);
            rest = after;
            let is_called = after.starts_with('(') || after.starts_with("::<");
            let qualifier = |before: &str| before.rsplit(|letter| !is_name(letter)).next().unwrap_or("").to_owned();
            if before.ends_with("fn") && qualifier(before) == "fn" {
                defined.insert((own.clone(), name.to_owned()));
            } else if let Some(before) = before.strip_suffix("::") {
                calls.push((own.clone(), qualifier(before) + "::", name.to_owned()));
            } else if is_called && let Some(before) = before.strip_suffix('.') {
                let is_own = qualifier(before.trim_end()) == "self";
                calls.push((own.clone(), if is_own { "self." } else { "." }.to_owned(), name.to_owned()));
            } else if is_called {
                calls.push((own.clone(), String::new(), name.to_owned()));
            }
        }
    }
    (defined, calls)
}

/// The modules that each module of a part calls within the part. Resolves calls of free functions, of functions qualified with their type,
/// and of methods on `self`. Other method calls count if only one file of the crate defines a method with that name.
fn calls(part_name: &str) -> BTreeMap<Module, BTreeSet<Module>> {
    let files: Vec<_> = sources().into_iter().filter(|(file, _)| !is_test(file)).map(|(file, code)| (file, functions(&code))).collect();
    let mut named: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut owners: BTreeMap<&Function, BTreeSet<&str>> = BTreeMap::new();
    for (file, (defined, _)) in &files {
        for function in defined {
            named.entry(&function.1).or_default().insert(file);
            if part(file) == part_name {
                owners.entry(function).or_default().insert(file);
            }
        }
    }
    let owner = |(own, qualifier, name): &Call| {
        let of = |type_name: &str| owners.get(&(type_name.to_owned(), name.clone()));
        let files = match qualifier.trim_end_matches("::") {
            "" | "super" => of(""),
            "self." | "Self" => of(own),
            "." => named.get(&**name),
            path => of(path).or_else(|| of("")),
        };
        files.filter(|files| files.len() == 1)?.first().copied().filter(|file| part(file) == part_name)
    };
    let called = |(file, (_, calls)): &(String, (_, Vec<Call>))| {
        let files = calls.iter().filter_map(owner).filter(|other| other != file);
        (module(file), files.map(module).collect())
    };
    files.iter().filter(|(file, _)| part(file) == part_name).map(called).collect()
}

/// The modules that a module uses, directly or indirectly.
fn reached<'u>(uses: &'u BTreeMap<Module, BTreeSet<Module>>, from: &'u Module) -> BTreeSet<&'u Module> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        next.extend(uses[module].iter().filter(|&other| reached.insert(other)));
    }
    reached
}

/// Groups of modules that use each other, directly or indirectly.
fn circles(uses: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<Vec<String>> {
    let reached: BTreeMap<_, _> = uses.keys().map(|module| (module, reached(uses, module))).collect();
    let circle = |own: &Module| {
        let files = uses.keys().filter(|&other| reached[own].contains(other) && reached[other].contains(own));
        files.map(|module| module.join("/")).collect::<Vec<_>>()
    };
    uses.keys().map(circle).filter(|files| files.len() > 1).collect()
}

#[test]
fn files_depend_on_each_other_in_one_direction() {
    let uses = uses();
    assert!(uses.values().map(BTreeSet::len).sum::<usize>() > 300, "the declarations are not found any more");
    assert_eq!(circles(&uses), BTreeSet::new(), "break the cycle");
}

/// Unlike `files_depend_on_each_other_in_one_direction`, this test also covers parents and children: a parent may call its children, but a
/// child must not call its parent.
#[test]
fn files_of_untangled_parts_call_each_other_in_one_direction() {
    let mut found = 0;
    for part_name in UNTANGLED {
        let mut uses: BTreeMap<_, _> = uses().into_iter().filter(|(module, _)| module[0] == part_name).collect();
        for others in uses.values_mut() {
            others.retain(|other| other[0] == part_name);
        }
        let calls = calls(part_name);
        found += calls.values().map(BTreeSet::len).sum::<usize>();
        for (module, called) in calls {
            uses.entry(module).or_default().extend(called);
        }
        assert_eq!(circles(&uses), BTreeSet::new(), "break the cycle; rename a method that has the name of a library method");
    }
    assert!(found > 100, "only {found} calls are found any more");
}

#[test]
fn calls_are_found_for_every_receiver() {
    let code = "impl<B: Broker> Worker<B> {\n    fn commit(&mut self) {\n        self\n            .abort(free(1));\n        self.outbox.begin();\n        inputs.map(Input::set_back);\n    }\n}\n\nfn free(of: u8) {}\n";
    let (defined, calls) = functions(code);
    let text = |texts: [&str; 2]| texts.map(str::to_owned).into();
    assert_eq!(defined, BTreeSet::from([["Worker", "commit"], ["", "free"]].map(text)));
    let found: Vec<_> = calls.iter().map(|(own, qualifier, name)| (&**own, &**qualifier, &**name)).collect();
    let expected = [("self.", "abort"), ("", "free"), (".", "begin"), (".", "map"), ("Input::", "set_back")];
    assert_eq!(found, expected.map(|(qualifier, name)| ("Worker", qualifier, name)));
}

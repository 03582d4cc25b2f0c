//! Promise: in all documents, every link has a target, commands parse, and configurations are valid.

use assert_cmd::cargo::cargo_bin_cmd;
use clap::error::ErrorKind;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

fn files(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_file() {
        found.push(path.to_owned());
    } else if !path.ends_with("target") {
        let mut entries: Vec<_> = fs::read_dir(path).expect("a directory").map(|entry| entry.expect("an entry").path()).collect();
        entries.sort();
        for entry in &entries {
            files(entry, found);
        }
    }
}

fn documents() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for path in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs", "helm", "tests", ".github"] {
        files(Path::new(path), &mut found);
    }
    found.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    // Code fences in lists are indented. Removes the indentation.
    let text = |path: &Path| fs::read_to_string(path).expect("UTF-8").replace("\n   ```", "\n```");
    found.into_iter().map(|path| (path.clone(), text(&path))).collect()
}

fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let fenced = text.split("\n```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'));
    fenced.filter(|(found, _)| *found == language).map(|(_, block)| block).collect()
}

fn prose(text: &str) -> String {
    text.split("\n```").step_by(2).collect()
}

/// The anchors of a page's headings, as GitHub generates them.
fn anchors(text: &str) -> HashSet<String> {
    let prose = prose(text);
    let headings = prose.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let kept = |letter: &char| letter.is_alphanumeric() || " -_".contains(*letter);
    headings.map(|heading| heading.chars().filter(kept).collect::<String>().to_lowercase().replace(' ', "-")).collect()
}

/// The targets of a page's links and pictures, except URLs.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let ends = ["](", "src=\"", "srcset=\""].into_iter().flat_map(|start| prose.split(start).skip(1));
    let targets = ends.map(|rest| rest.split([')', '"', ' ', '\n']).next().unwrap_or_default().to_owned());
    targets.filter(|target| !target.contains(':')).collect()
}

#[test]
fn links_and_anchors_exist() {
    for (page, text) in documents() {
        for link in links(&text) {
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() { page.clone() } else { page.parent().expect("a directory").join(path) };
            assert!(target.exists(), "{}: {link} does not exist", page.display());
            let exists = || anchors(&fs::read_to_string(&target).expect("UTF-8")).contains(anchor);
            assert!(anchor.is_empty() || exists(), "{}: {link} refers to a heading that does not exist", page.display());
        }
    }
}

#[test]
fn the_index_lists_every_page() {
    let index = fs::read_to_string("docs/README.md").expect("the index");
    let place = |path: &Path| fs::canonicalize(path).expect("a page");
    let page = |link: String| place(&Path::new("docs").join(link.split('#').next().unwrap_or_default()));
    let listed: HashSet<_> = links(&index).into_iter().map(page).collect();
    let is_part = |page: &Path| ["docs/use-cases", "docs/benchmarks", "docs/README.md"].iter().any(|part| page.starts_with(part));
    for (page, _) in documents().into_iter().filter(|(page, _)| page.starts_with("docs") && !is_part(page)) {
        assert!(listed.contains(&place(&page)), "docs/README.md does not list {}", page.display());
    }
}

#[test]
fn paths_that_code_and_settings_mention_exist() {
    let mut found = Vec::new();
    for path in ["src", "tests", "benches", "config", "helm", "scripts", "docker-compose.yml"] {
        files(Path::new(path), &mut found);
    }
    for file in found {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        for rest in text.split("docs/").skip(1) {
            let path = rest.split(|letter: char| !letter.is_alphanumeric() && !"-./_".contains(letter)).next().unwrap_or_default();
            let path = Path::new("docs").join(path.trim_end_matches('.'));
            // In a regular expression, the dot of the extension is escaped, so the path found here ends before the extension.
            assert!(path.exists() || path.with_extension("md").exists(), "{}: {} does not exist", file.display(), path.display());
        }
    }
}

/// The arguments of `unseen` in a shell command, without comments and shell syntax.
fn arguments(line: &str) -> Option<String> {
    let line = line.split(['#', '|', '>']).next()?;
    let (start, arguments) = line.split_once("unseen ")?;
    start.split_whitespace().all(|word| word.contains('=')).then(|| arguments.to_owned())
}

#[test]
fn commands_parse() {
    // Commands in running text may leave out arguments or have placeholders such as OFFSET.
    let parts = [ErrorKind::MissingRequiredArgument, ErrorKind::ValueValidation, ErrorKind::InvalidValue];
    for (page, text) in documents().into_iter().filter(|(page, _)| page != Path::new("CHANGELOG.md")) {
        let scripts = blocks(&text, "sh").join("\n").replace("\\\n", " ");
        let sessions = blocks(&text, "console").join("\n");
        let typed = sessions.lines().filter_map(|line| line.trim().strip_prefix("$ "));
        let whole = scripts.lines().chain(typed).filter_map(arguments).map(|line| (line, &parts[..0]));
        let prose = prose(&text);
        let spans = prose.split('`').skip(1).step_by(2).filter_map(|span| span.strip_prefix("unseen "));
        let spans = spans.filter(|span| !span.contains('…')).map(|span| (span.replace('\n', " "), &parts[..]));
        for (line, allowed) in whole.chain(spans) {
            let words = line.split_whitespace().map(|word| word.trim_matches(['"', '\'']));
            if let Err(error) = unseen::cli::command().try_get_matches_from(["unseen"].into_iter().chain(words)) {
                assert!(error.exit_code() == 0 || allowed.contains(&error.kind()), "{}: `unseen {line}`: {error}", page.display());
            }
        }
    }
}

#[test]
fn configurations_are_valid() {
    let file = tempfile::NamedTempFile::with_suffix(".toml").expect("a file");
    // True for a block of librdkafka properties, of configuration tests, or of tables other than `[[topics]]`.
    let is_other = |block: &str| !block.contains("[[topics]]") && (block.starts_with(['"', '[']) || block.contains("\n["));
    let options =
        "input = 'in'\noutput = 'out'\nkey = { record = 'key' }\nwindow = '1d'\non_invalid = { topic = 'dead' }\nfilter = { capacity = 1 }";
    let name = |line: &str| line.split_once(" =").map(|(name, _)| name.trim().to_owned());
    for (page, text) in documents() {
        for block in blocks(&text, "toml").into_iter().filter(|block| !is_other(block)) {
            // A block without tables shows alternatives for options of a topic, one per line.
            let is_whole = block.contains("[[topics]]");
            for part in if is_whole { vec![block] } else { block.lines().collect() } {
                let missing = options.lines().filter(|line| !part.lines().any(|given| name(given) == name(line)));
                let topic = missing.collect::<Vec<_>>().join("\n");
                let kafka = if block.contains("[kafka]") { "" } else { "[kafka]\nbootstrap_servers = 'localhost:9092'\n" };
                let head = if is_whole { "" } else { "[[topics]]\n" };
                let secret = part.replace("${file:/run/secrets/unseen}", "0123456789abcdef0123456789abcdef");
                fs::write(&file, format!("{kafka}{head}{secret}\n{topic}\n")).expect("a file");
                let output = cargo_bin_cmd!("unseen").env_clear().args(["check", "-c"]).arg(file.path()).output().expect("a command");
                assert!(output.status.success(), "{}: {part}\n{}", page.display(), String::from_utf8_lossy(&output.stderr));
            }
        }
    }
}

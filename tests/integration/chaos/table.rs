//! Parses the promises of docs/contributing/promises.md, so that the tests check what the page promises.

use std::collections::BTreeMap;
use std::ops::BitAnd;
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Every record that is unseen within the window is emitted.
    pub nothing_lost: bool,
    /// A key that was emitted is not emitted again within the window.
    pub nothing_twice: bool,
    /// The output is the same as in an undisturbed run.
    pub exact: bool,
}

impl BitAnd for Promise {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self {
            nothing_lost: self.nothing_lost && other.nothing_lost,
            nothing_twice: self.nothing_twice && other.nothing_twice,
            exact: self.exact && other.exact,
        }
    }
}

/// The rows of all tables with the columns "nothing lost", "nothing twice", and "exact".
pub fn rows() -> BTreeMap<String, Promise> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/contributing/promises.md");
    let text = std::fs::read_to_string(page).expect("the page");
    let mut rows = BTreeMap::new();
    let mut promises = false;
    for line in text.lines() {
        let Some(cells) = line.strip_prefix('|') else {
            promises = false;
            continue;
        };
        let cells: Vec<_> = cells.split('|').map(str::trim).collect();
        if cells.len() > 4 && cells[1..4] == ["nothing lost", "nothing twice", "exact"] {
            promises = true;
        } else if promises && !cells[0].starts_with("---") {
            let holds = |cell: &str| match cell {
                "yes" => true,
                "no" => false,
                other => panic!("docs/contributing/promises.md: {:?} is promised with {other:?}, neither yes nor no", cells[0]),
            };
            let promise = Promise { nothing_lost: holds(cells[1]), nothing_twice: holds(cells[2]), exact: holds(cells[3]) };
            assert!(rows.insert(cells[0].replace('`', ""), promise).is_none(), "docs/contributing/promises.md has {:?} twice", cells[0]);
        }
    }
    rows
}

pub fn promise<'a>(names: impl IntoIterator<Item = &'a str>) -> Promise {
    let rows = rows();
    let all = Promise { nothing_lost: true, nothing_twice: true, exact: true };
    names
        .into_iter()
        .fold(all, |promise, name| promise & *rows.get(name).unwrap_or_else(|| panic!("docs/contributing/promises.md has no row {name:?}")))
}

/// The promise for these rows, except for the row of `delivery`. It covers which records are emitted, but not in which order or how often
/// each of them is emitted.
pub fn promise_without_delivery<'a>(names: impl IntoIterator<Item = &'a str>) -> Promise {
    promise(names.into_iter().filter(|name| !name.starts_with("delivery = ")))
}

//! What is wrong with a configuration: every fault at once, each with its place.
//!
//! Must never show the value of a Kafka property.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

/// Where a value came from that is not in the file.
pub(super) const ENVIRONMENT: &str = "environment";
/// Where a value came from that was given on the command line.
pub(super) const FLAGS: &str = "flags";

/// One fault of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The file's name, `environment` or `flags`.
    pub source: String,
    /// The place in it, such as `topics[0].window`; empty when the fault is of the whole.
    pub path: String,
    /// What was expected, and what there is instead.
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.source)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// All faults of a configuration; at least one. Shown one a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors(pub Vec<Error>);

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}

/// Collects faults, and knows which layer each path came from.
#[derive(Debug)]
pub(super) struct Diagnostics {
    file: String,
    sources: BTreeMap<String, &'static str>,
    errors: Vec<Error>,
}

impl Diagnostics {
    pub(super) const fn new(file: String) -> Self {
        Self { file, sources: BTreeMap::new(), errors: Vec::new() }
    }

    /// Remembers that the value at `path` is not the file's.
    pub(super) fn came_from(&mut self, path: &str, source: &'static str) {
        self.sources.insert(path.to_owned(), source);
    }

    /// A fault of the value at `path`.
    pub(super) fn add(&mut self, path: &str, message: impl Into<String>) {
        let source = self.sources.iter().find(|(known, _)| within(known, path)).map_or(&*self.file, |(_, source)| source);
        let error = Error { source: source.to_owned(), path: path.to_owned(), message: message.into() };
        // The topics of an entry can have the same fault.
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    /// A fault of a layer, or of a value that never made it into the configuration.
    pub(super) fn add_from(&mut self, source: &str, path: &str, message: impl Into<String>) {
        self.errors.push(Error { source: source.to_owned(), path: path.to_owned(), message: message.into() });
    }

    /// Whether a fault is known at `path`, above or below it: what depends on it need not be said.
    pub(super) fn knows(&self, path: &str) -> bool {
        self.errors.iter().any(|error| within(&error.path, path) || within(path, &error.path))
    }

    /// What was made of the configuration if there is no fault, else the faults in the order of their paths.
    pub(super) fn finish<T>(mut self, made: Option<T>) -> Result<T, Errors> {
        match made {
            Some(made) if self.errors.is_empty() => Ok(made),
            _ => {
                self.errors.sort_by(|a, b| a.path.cmp(&b.path));
                Err(Errors(self.errors))
            }
        }
    }
}

/// Whether `inner` is `outer` or lies below it.
fn within(inner: &str, outer: &str) -> bool {
    inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// A required value. That it is missing is said only if it was not taken out for another fault.
pub(super) fn required<T>(value: Option<T>, path: &str, what: &str, diagnostics: &mut Diagnostics) -> Option<T> {
    if value.is_none() && !diagnostics.knows(path) {
        diagnostics.add(path, format!("required: {what}"));
    }
    value
}

/// Reports a number that is out of range.
pub(super) fn integer(value: u64, range: &RangeInclusive<u64>, path: &str, diagnostics: &mut Diagnostics) {
    if !range.contains(&value) {
        diagnostics.add(path, format!("expected a number from {} to {}, got {value}", range.start(), range.end()));
    }
}

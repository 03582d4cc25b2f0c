//! The errors of a configuration, which are all reported at once.
//!
//! An error does not show the value of a Kafka property, because the value may be a secret. The only exception is an invalid `${...}`
//! reference in the value (see `secrets::withhold`).

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

pub(super) const ENVIRONMENT: &str = "environment";
pub(super) const FLAGS: &str = "flags";

/// One error of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The path of the configuration file, `environment`, or `flags`.
    pub source: String,
    /// The path of the option, such as `topics[0].window`. If an environment variable or the path in `--set PATH=VALUE` does not name an
    /// option, the name of that variable or that path. Empty if the error concerns the whole file.
    pub path: String,
    /// The error message, usually with the expected and the actual value.
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

/// All errors of a configuration, at least one. `Display` prints one error per line.
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

    /// Remembers that the value at `path` comes from `source` instead of the file.
    pub(super) fn came_from(&mut self, path: &str, source: &'static str) {
        self.sources.insert(path.to_owned(), source);
    }

    pub(super) fn add(&mut self, path: &str, message: impl Into<String>) {
        let source = self.sources.iter().find(|(known, _)| within(known, path)).map_or(&*self.file, |(_, source)| source);
        let error = Error { source: source.to_owned(), path: path.to_owned(), message: message.into() };
        // All topics of an entry can have the same error. Report it only once.
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    /// Adds an error for a `path` that is not the path of an option, such as the name of an unknown variable.
    pub(super) fn add_from(&mut self, source: &str, path: &str, message: impl Into<String>) {
        self.errors.push(Error { source: source.to_owned(), path: path.to_owned(), message: message.into() });
    }

    /// True if an error was already reported at `path`, at a table or list that contains `path`, or inside `path`. Callers then do not
    /// report another error, because it could follow from the reported error.
    pub(super) fn knows(&self, path: &str) -> bool {
        self.errors.iter().any(|error| within(&error.path, path) || within(path, &error.path))
    }

    /// Returns `made` if no error was reported, or else the errors, sorted by path.
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

/// True if the path `inner` is equal to the path `outer` or inside it: `topics[0].key` is inside `topics[0]`.
fn within(inner: &str, outer: &str) -> bool {
    inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Reports that a required value is missing, unless the value was removed because of another error.
pub(super) fn required<T>(value: Option<T>, path: &str, what: &str, diagnostics: &mut Diagnostics) -> Option<T> {
    if value.is_none() && !diagnostics.knows(path) {
        diagnostics.add(path, format!("required: {what}"));
    }
    value
}

pub(super) fn integer(value: u64, range: &RangeInclusive<u64>, path: &str, diagnostics: &mut Diagnostics) {
    if !range.contains(&value) {
        diagnostics.add(path, format!("expected a number from {} to {}, got {value}", range.start(), range.end()));
    }
}

//! Substitutes `${VAR}` in values of the file.
//!
//! Variables are substituted after the file is parsed, so their values cannot change the structure of the file. References in the value of
//! a variable are not substituted.

use std::collections::BTreeMap;

pub(super) type Environment = BTreeMap<String, String>;

/// Substitutes `${VAR}`, `${VAR:-default}`, `${VAR:?message}`, and `${file:/path}`. `$$` becomes a dollar sign.
pub(super) fn substitute(text: &str, environment: &Environment) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        rest = if let Some(after) = after.strip_prefix('$') {
            out.push('$');
            after
        } else if let Some(after) = after.strip_prefix('{') {
            let (expression, after) = after.split_once('}').ok_or("`${` has no closing `}`; for a dollar sign, write `$$`")?;
            out.push_str(&look_up(expression, environment)?);
            after
        } else {
            out.push('$');
            after
        };
    }
    out.push_str(rest);
    Ok(out)
}

fn look_up(expression: &str, environment: &Environment) -> Result<String, String> {
    if let Some(path) = expression.strip_prefix("file:") {
        let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {path}: {error}"))?;
        let line = text.strip_suffix('\n').unwrap_or(&text);
        return Ok(line.strip_suffix('\r').unwrap_or(line).to_owned());
    }
    let (name, otherwise) = expression.split_once(':').map_or((expression, None), |(name, rest)| (name, Some(rest)));
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        // The error message does not show the text, because it may be part of a password.
        return Err("`${` is not followed by the name of an environment variable; for a dollar sign, write `$$`".to_owned());
    }
    let value = environment.get(name);
    // As in a shell, the forms with a colon treat an empty variable as unset.
    let filled = value.filter(|value| !value.is_empty());
    match otherwise {
        None => value.cloned().ok_or_else(|| format!("environment variable {name} is not set")),
        Some(rest) => match (filled, rest.strip_prefix('-'), rest.strip_prefix('?')) {
            (_, None, None) => Err("expected ${NAME}, ${NAME:-default}, or ${NAME:?message}".to_owned()),
            (Some(value), ..) => Ok(value.clone()),
            (None, Some(default), _) => Ok(default.to_owned()),
            (None, None, Some("")) => Err(format!("environment variable {name} is not set or is empty")),
            (None, None, Some(message)) => Err(format!("environment variable {name} is not set or is empty: {message}")),
        },
    }
}

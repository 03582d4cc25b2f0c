//! `${VAR}` within a value of the file.
//!
//! Values are substituted after the file is parsed, so nothing that a variable holds can become
//! structure, and what was put in is not looked at again.

use std::collections::BTreeMap;

/// The environment as it was at start.
pub(super) type Environment = BTreeMap<String, String>;

/// Puts in `${VAR}`, `${VAR:-default}`, `${VAR:?message}` and `${file:/path}`; `$$` is a dollar sign.
pub(super) fn substitute(text: &str, environment: &Environment) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        rest = if let Some(after) = after.strip_prefix('$') {
            out.push('$');
            after
        } else if let Some(after) = after.strip_prefix('{') {
            let (expression, after) = after.split_once('}').ok_or("`${` without `}`; write `$$` for a dollar sign")?;
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
        // What stands there is not shown: it may be part of a password.
        return Err("`${` is not followed by the name of an environment variable; write `$$` for a dollar sign".to_owned());
    }
    let value = environment.get(name);
    // As in a shell, the forms with a colon take an empty variable for an unset one.
    let filled = value.filter(|value| !value.is_empty());
    match otherwise {
        None => value.cloned().ok_or_else(|| format!("environment variable {name} is not set")),
        Some(rest) => match (filled, rest.strip_prefix('-'), rest.strip_prefix('?')) {
            (_, None, None) => Err("expected ${NAME}, ${NAME:-default} or ${NAME:?message}".to_owned()),
            (Some(value), ..) => Ok(value.clone()),
            (None, Some(default), _) => Ok(default.to_owned()),
            (None, None, Some("")) => Err(format!("environment variable {name} is not set")),
            (None, None, Some(message)) => Err(format!("environment variable {name} is not set: {message}")),
        },
    }
}

//! Addresses to listen on.

use super::error::Diagnostics;
use std::net::SocketAddr;

/// Parses an address and a port. Returns `None` for `off`. If the text is neither, reports an error that shows the `example`.
pub(super) fn listen(raw: &str, path: &str, example: &str, diagnostics: &mut Diagnostics) -> Result<Option<SocketAddr>, ()> {
    if raw == "off" {
        return Ok(None);
    }
    raw.parse().map(Some).map_err(|_| {
        let port = example.rsplit_once(':').map_or("", |(_, port)| port);
        let message = format!("expected an address and a port, such as {example:?} or \"[::]:{port}\", or \"off\"; got {raw:?}");
        diagnostics.add(path, message);
    })
}

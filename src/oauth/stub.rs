//! An HTTP server for tests of HTTP clients.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;

/// Starts a server and returns its URL. `answer` gets the head and the body of a request in one text and returns the status and the body of
/// the response. The server stops when `answer` returns `None`.
pub(crate) fn serve<B: AsRef<str>>(mut answer: impl FnMut(&str) -> Option<(u16, B)> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // Nobody joins the thread, which ends with the process at the latest.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let head = reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty());
            let mut request: String = head.map(|line| line + "\n").collect();
            let length = request.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
            reader.take(length.unwrap_or(0)).read_to_string(&mut request).unwrap();
            let Some((status, body)) = answer(&request) else { break };
            let body = body.as_ref();
            let response = format!("HTTP/1.1 {status} -\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
            let _ = stream.write_all(response.as_bytes());
        }
    });
    url
}

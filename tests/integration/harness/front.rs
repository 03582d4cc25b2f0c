//! A proxy between clients and a broker. It can change requests and responses, or respond instead of the broker.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::spawn;

/// Sends a request to the broker and returns the response, both without the size prefix.
pub type Ask<'a> = dyn FnMut(&[u8]) -> io::Result<Vec<u8>> + 'a;

/// Handles a client's request and returns the response, both without the size prefix.
pub type Exchange = Box<dyn FnMut(Vec<u8>, &mut Ask<'_>) -> io::Result<Vec<u8>> + Send>;

/// Starts a proxy to a broker and returns the address of the proxy. `connect` creates an [`Exchange`] for each connection. On each
/// connection, the proxy handles one request at a time. The proxy runs until this process ends.
pub fn front(target: &str, connect: impl Fn() -> Exchange + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let target: Arc<str> = target.into();
    spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let (exchange, target) = (connect(), Arc::clone(&target));
            // `pass_on` returns an error when either side closes its connection.
            spawn(move || drop(pass_on(&client, &target, exchange)));
        }
    });
    address
}

fn pass_on(client: &TcpStream, target: &str, mut exchange: Exchange) -> io::Result<()> {
    let broker = TcpStream::connect(target)?;
    loop {
        let request = read(client)?;
        let answer = exchange(request, &mut |request| {
            write(&broker, request)?;
            read(&broker)
        })?;
        write(client, &answer)?;
    }
}

fn read(mut stream: &TcpStream) -> io::Result<Vec<u8>> {
    let mut size = [0; 4];
    stream.read_exact(&mut size)?;
    let mut bytes = vec![0; u32::from_be_bytes(size) as usize];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn write(mut stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    let size = u32::try_from(bytes.len()).expect("a size");
    stream.write_all(&[&size.to_be_bytes(), bytes].concat())
}

/// The API key and the version of a request.
pub fn api(request: &[u8]) -> (i16, i16) {
    let number = |at: usize| i16::from_be_bytes([request[at], request[at + 1]]);
    (number(0), number(2))
}

/// Changes an `ApiVersions` response in place. With `most`, the response reports `most` as the highest supported version of the API with
/// the key `limited`. Without `most`, the response does not list that API.
pub fn limit_api(request: &[u8], answer: &mut [u8], limited: i16, most: Option<i16>) {
    // The entries follow the correlation ID, the error code, and the number of entries. From version 3 on, the number takes one byte
    // instead of four, and each entry ends with a byte for tagged fields.
    let (mut at, size) = if api(request).1 >= 3 { (4 + 2 + 1, 7) } else { (4 + 2 + 4, 6) };
    while at + size <= answer.len() && answer[at..at + 2] != limited.to_be_bytes() {
        at += size;
    }
    assert!(at + size <= answer.len(), "the ApiVersions response of the broker does not list API key {limited}");
    match most {
        Some(most) => answer[at + 4..at + 6].copy_from_slice(&most.to_be_bytes()),
        // Replaces the API key with one that no client knows.
        None => answer[at..at + 2].copy_from_slice(&i16::MAX.to_be_bytes()),
    }
}

//! A proxy to a broker. It can cut connections, limit the bandwidth, and delay an `EndTxn` request.

use super::{PATIENCE, wait_until};
use std::io::{Read, Write, copy};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{sleep, spawn};
use std::time::Duration;

pub struct Way {
    port: u16,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    /// The broker's address. `None` until [`Way::lead_to`].
    target: Option<String>,
    is_cut: bool,
    /// The bandwidth of each new connection in the direction of the broker, in bytes per second. `None` means no limit.
    width: Option<u32>,
    /// The client's end and the broker's end of every forwarded connection.
    ends: Vec<TcpStream>,
    holds_end: bool,
    /// The held `EndTxn` request with its length prefix.
    held_end: Option<Vec<u8>>,
}

const END_TXN: [u8; 2] = 26_i16.to_be_bytes();

impl Way {
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let shared = Arc::new(Mutex::new(Shared::default()));
        let way = Arc::clone(&shared);
        // The thread ends with this process.
        spawn(move || listener.incoming().flatten().for_each(|client| lead(client, &way)));
        Self { port, shared }
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn lead_to(&self, target: &str) {
        lock(&self.shared).target = Some(target.to_owned());
    }

    /// Closes all connections and rejects new ones until [`Way::restore`].
    pub fn cut(&self) {
        let mut shared = lock(&self.shared);
        shared.is_cut = true;
        for end in shared.ends.drain(..) {
            // Fails only if the connection is already closed.
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    /// Limits the bandwidth of new connections in the direction of the broker. Does not change existing connections.
    pub fn narrow(&self, bytes_a_second: u32) {
        lock(&self.shared).width = Some(bytes_a_second);
    }

    /// Holds back the next `EndTxn` request and closes its connection, so that the client sends the request again. Has no effect on
    /// connections whose bandwidth [`Way::narrow`] limits.
    pub fn hold_end(&self) {
        lock(&self.shared).holds_end = true;
    }

    pub fn wait_until_held(&self) {
        wait_until("an EndTxn request is held", PATIENCE, || lock(&self.shared).held_end.as_ref().map(drop));
    }

    /// Forwards the held request and returns the broker's error code.
    pub fn release_end(&self) -> i16 {
        let (target, request) = {
            let mut shared = lock(&self.shared);
            (shared.target.clone().expect("a target"), shared.held_end.take().expect("a request"))
        };
        let mut broker = TcpStream::connect(target).expect("a broker");
        broker.write_all(&request).expect("it is sent");
        // The error code follows the size, the correlation ID, and the throttle time.
        let mut answer = [0; 14];
        broker.read_exact(&mut answer).expect("an answer");
        i16::from_be_bytes([answer[12], answer[13]])
    }

    pub fn restore(&self) {
        lock(&self.shared).is_cut = false;
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connects a client to the target. If there is no target, the proxy is cut, or the target does not accept a connection, closes the
/// client's connection.
fn lead(client: TcpStream, way: &Arc<Mutex<Shared>>) {
    let mut shared = lock(way);
    let Some(target) = shared.target.as_ref().filter(|_| !shared.is_cut) else { return };
    let Ok(server) = TcpStream::connect(target) else { return };
    let handles = |from: &TcpStream, to: &TcpStream| [from, to].map(|end| end.try_clone().expect("another handle"));
    let ([mut from, mut to], width, requests) = (handles(&client, &server), shared.width, Arc::clone(way));
    spawn(move || {
        // After the copy ends for any reason, both connections must end.
        let _ = match width {
            Some(width) => copy_slowly(&mut from, &mut to, width),
            None => copy_requests(&mut from, &mut to, &requests),
        };
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
    let [mut from, mut to] = handles(&server, &client);
    spawn(move || {
        let _ = copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
    shared.ends.extend([client, server]);
}

/// Forwards requests until the connection ends or a request is held back.
fn copy_requests(from: &mut TcpStream, to: &mut TcpStream, way: &Mutex<Shared>) -> std::io::Result<()> {
    loop {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let mut request = length.to_vec();
        let body = u64::from(u32::from_be_bytes(length));
        (&*from).take(body).read_to_end(&mut request)?;
        if request.get(4..6) == Some(&END_TXN[..]) {
            let mut shared = lock(way);
            if std::mem::take(&mut shared.holds_end) {
                shared.held_end = Some(request);
                return Ok(());
            }
        }
        to.write_all(&request)?;
    }
}

fn copy_slowly(from: &mut TcpStream, to: &mut TcpStream, bytes_a_second: u32) -> std::io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..read])?;
        sleep(Duration::from_secs(1) * u32::try_from(read).expect("no more than the buffer") / bytes_a_second);
    }
}

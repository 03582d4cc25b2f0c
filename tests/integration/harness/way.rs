//! A way to a broker that can be cut and made narrow, and that can delay the end of a transaction.

use super::{PATIENCE, wait_until};
use std::io::{Read, Write, copy};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{sleep, spawn};
use std::time::Duration;

/// Passes on what comes to a port of its own.
pub struct Way {
    port: u16,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    /// Where it leads; nowhere at first.
    target: Option<String>,
    is_cut: bool,
    /// Most bytes a second that a connection carries to there, if that is bounded.
    width: Option<u32>,
    /// Both ends of what was passed on.
    ends: Vec<TcpStream>,
    /// True if the next `EndTxn` request is to be held.
    holds_end: bool,
    /// The request that is held, with its length.
    held_end: Option<Vec<u8>>,
}

/// The key of `EndTxn` in Kafka's protocol.
const END_TXN: [u8; 2] = 26_i16.to_be_bytes();

impl Way {
    /// One that leads nowhere yet.
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let shared = Arc::new(Mutex::new(Shared::default()));
        let way = Arc::clone(&shared);
        // It ends with this process.
        spawn(move || listener.incoming().flatten().for_each(|client| lead(client, &way)));
        Self { port, shared }
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Has it lead to an address.
    pub fn lead_to(&self, target: &str) {
        lock(&self.shared).target = Some(target.to_owned());
    }

    /// Ends all connections, and takes no others.
    pub fn cut(&self) {
        let mut shared = lock(&self.shared);
        shared.is_cut = true;
        for end in shared.ends.drain(..) {
            // Fails only if it has already ended.
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    /// Has each connection made from now on carry so many bytes a second at most, to there.
    pub fn narrow(&self, bytes_a_second: u32) {
        lock(&self.shared).width = Some(bytes_a_second);
    }

    /// Keeps back the next `EndTxn` request, and ends the connection that it came by: the client has to send it again.
    pub fn hold_end(&self) {
        lock(&self.shared).holds_end = true;
    }

    /// Waits until an `EndTxn` request is held.
    pub fn wait_until_held(&self) {
        wait_until("an EndTxn request is held", PATIENCE, || lock(&self.shared).held_end.as_ref().map(drop));
    }

    /// Passes on the request that was held, and returns the broker's error code.
    pub fn release_end(&self) -> i16 {
        let (target, request) = {
            let mut shared = lock(&self.shared);
            (shared.target.clone().expect("a target"), shared.held_end.take().expect("a request"))
        };
        let mut broker = TcpStream::connect(target).expect("a broker");
        broker.write_all(&request).expect("it is sent");
        // Size, correlation, throttle time; then the code.
        let mut answer = [0; 14];
        broker.read_exact(&mut answer).expect("an answer");
        i16::from_be_bytes([answer[12], answer[13]])
    }

    /// Takes connections again.
    pub fn mend(&self) {
        lock(&self.shared).is_cut = false;
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Leads a client to the target, or drops it.
fn lead(client: TcpStream, way: &Arc<Mutex<Shared>>) {
    let mut shared = lock(way);
    let Some(target) = shared.target.as_ref().filter(|_| !shared.is_cut) else { return };
    let Ok(server) = TcpStream::connect(target) else { return };
    let handles = |from: &TcpStream, to: &TcpStream| [from, to].map(|end| end.try_clone().expect("another handle"));
    let ([mut from, mut to], width, requests) = (handles(&client, &server), shared.width, Arc::clone(way));
    spawn(move || {
        // Either end may be gone; so is the other then.
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

/// Passes requests on, until one is to be held.
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

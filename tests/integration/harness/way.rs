//! A way to a broker that can be cut, and made narrow.

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
}

impl Way {
    /// One that leads nowhere yet.
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let shared = Arc::new(Mutex::new(Shared::default()));
        let way = Arc::clone(&shared);
        // It ends with this process.
        spawn(move || listener.incoming().flatten().for_each(|client| lead(client, &mut lock(&way))));
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

    /// Takes connections again.
    pub fn mend(&self) {
        lock(&self.shared).is_cut = false;
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Leads a client to the target, or drops it.
fn lead(client: TcpStream, shared: &mut Shared) {
    let Some(target) = shared.target.as_ref().filter(|_| !shared.is_cut) else { return };
    let Ok(server) = TcpStream::connect(target) else { return };
    let ways = [(&client, &server, shared.width), (&server, &client, None)];
    for (from, to, width) in ways {
        let [mut from, mut to] = [from, to].map(|end| end.try_clone().expect("another handle"));
        spawn(move || {
            // Either end may be gone; so is the other then.
            let _ = match width {
                Some(width) => copy_slowly(&mut from, &mut to, width),
                None => copy(&mut from, &mut to).map(drop),
            };
            let _ = to.shutdown(Shutdown::Both);
        });
    }
    shared.ends.extend([client, server]);
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

//! A way to a broker that can be cut.

use std::io::copy;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::spawn;

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
    let ways = [(&client, &server), (&server, &client)];
    for (from, to) in ways {
        let [mut from, mut to] = [from, to].map(|end| end.try_clone().expect("another handle"));
        spawn(move || {
            let _ = copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
    shared.ends.extend([client, server]);
}

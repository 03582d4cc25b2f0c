//! The HTTP server of a worker: its limits on connections, and requests for other hosts.

use super::{ID, Setup};
use assert_cmd::cargo::cargo_bin;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A worker that waits for brokers and serves HTTP on a loopback address.
struct Waiting {
    worker: Child,
    address: SocketAddr,
}

impl Waiting {
    /// Starts a worker that may open at most `descriptors` file descriptors.
    fn start(setup: &Setup, descriptors: u32) -> Self {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut run = Command::new("sh");
        run.args(["-c", &format!("ulimit -n {descriptors} && exec \"$0\" run -c \"$1\" --set \"$2\"")]);
        run.arg(cargo_bin("unseen")).arg(setup.path("unseen.toml")).arg(format!("http.listen={address}"));
        let worker = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let waiting = Self { worker, address };
        let started = Instant::now();
        while waiting.ask("/livez", "localhost").is_err() && started.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(50));
        }
        waiting
    }

    fn ask(&self, path: &str, host: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.worker.kill().unwrap();
        self.worker.wait().unwrap();
    }
}

/// If there are more incomplete requests than file descriptors, the worker closes the oldest connections and still answers probes.
#[test]
fn idle_connections_do_not_exhaust_descriptors() {
    let setup = Setup::new("connect_timeout = \"10m\"", ID);
    let waiting = Waiting::start(&setup, 256);
    let half = |_| {
        let mut stream = TcpStream::connect(waiting.address).unwrap();
        // The oldest connections may be closed already.
        let _ = stream.write_all(b"GET /livez HTTP/1.1\r\nHost:");
        stream
    };
    let idle: Vec<_> = (0..400).map(half).collect();
    let answer = waiting.ask("/livez", "localhost");
    let open = fs::read_dir(format!("/proc/{}/fd", waiting.worker.id())).map_or(0, Iterator::count);
    // A timeout would mean that the worker has not closed the connection.
    let ended = idle.into_iter().all(|mut stream| {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        !matches!(stream.read(&mut [0; 512]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    });
    let answer = answer.expect("no response to a probe");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("cache-control: no-store"), "{answer}");
    assert!(open < 200, "{open} descriptors are open");
    assert!(ended, "a connection is still open");
}

/// A web page can resolve its own host name to a loopback address (DNS rebinding), so the worker checks the host of each request.
#[test]
fn requests_for_other_hosts_are_rejected_on_loopback() {
    let setup = Setup::new("connect_timeout = \"10m\"", ID);
    let waiting = Waiting::start(&setup, 256);
    for path in ["/", "/livez", "/readyz", "/metrics", "/api/v1/status", "/no/such/page"] {
        for host in ["evil", "evil.example:8080"] {
            let answer = waiting.ask(path, host).unwrap();
            assert!(
                answer.starts_with("HTTP/1.1 421 ")
                    && answer.ends_with("use the host name localhost, or set http.listen to another address\n"),
                "{path}: {answer}"
            );
        }
    }
    let here = waiting.ask("/metrics", &waiting.address.to_string()).unwrap();
    assert!(here.starts_with("HTTP/1.1 200 "), "{here}");
}

//! The command `serve`: shutdown on signals.

use super::Setup;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

struct Serving {
    server: Child,
    log: BufReader<ChildStderr>,
}

impl Serving {
    fn start(setup: &Setup) -> Self {
        let ports = ["--set", "serve.listen=127.0.0.1:0", "--set", "serve.http_listen=off"];
        let mut server = setup.command(&[&["serve"], &ports[..]].concat()).stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(server.stderr.take().unwrap());
        Self { server, log }
    }

    fn wait_for_log(&mut self, message: &str) -> Value {
        for line in self.log.by_ref().lines() {
            let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
            if line.to_string().contains(message) {
                return line;
            }
        }
        panic!("the server ended without {message:?} in its log");
    }

    fn sigterm(&self) {
        assert!(Command::new("kill").arg(self.server.id().to_string()).status().unwrap().success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// The first signal lets pending requests finish.
#[test]
fn a_second_signal_ends_the_server_at_once() {
    let setup = Setup::new("", "key = { field = \"/id\" }");
    for (signals, code) in [(1, 0), (2, 130)] {
        let mut serving = Serving::start(&setup);
        let line = serving.wait_for_log("listening for Redis clients");
        let address = line["address"].as_str().unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        client.write_all(b"MULTI\r\nPING\r\n").unwrap();
        let mut answer = [0; 14];
        client.read_exact(&mut answer).unwrap();
        serving.sigterm();
        serving.wait_for_log("shutting down");
        let mut rest = String::new();
        if signals == 1 {
            client.write_all(b"EXEC\r\n").unwrap();
            client.read_to_string(&mut rest).unwrap();
            assert_eq!(rest, "*1\r\n+PONG\r\n");
        } else {
            serving.sigterm();
        }
        assert_eq!(serving.server.wait().unwrap().code(), Some(code));
    }
}

//! Connections of clients, without brokers: the server answers, but knows no key.

use super::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

/// A server whose table `[serve]` has these lines.
fn server(options: &str) -> Arc<Server> {
    let text = format!(
        "[kafka]\nbootstrap_servers = \"127.0.0.1:1\"\n\
         [[topics]]\ninput = \"orders\"\noutput = \"unseen\"\nspace = \"orders\"\nwindow = \"1h\"\nkey = {{ record = \"key\" }}\n\
         filter = {{ capacity = 1000 }}\n\
         [serve]\nlisten = \"127.0.0.1:0\"\nhttp_listen = \"127.0.0.1:0\"\nthreads = 2\n{options}\n"
    );
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("unseen.toml");
    std::fs::write(&file, text).unwrap();
    let config = Arc::new(Config::load(&file, &[]).unwrap());
    let server = Server::new(&config, Follower::start(&config).unwrap()).unwrap();
    // Dropping the follower waits for a question that no broker answers.
    std::mem::forget(Arc::clone(&server));
    server
}

/// The client's end of a connection in memory.
fn connect(server: &Arc<Server>) -> DuplexStream {
    let (client, stream) = duplex(64 << 10);
    let server = Arc::clone(server);
    tokio::spawn(async move { connection::serve(&server, stream, 1).await });
    client
}

async fn answers(mut client: DuplexStream, question: &[u8]) -> String {
    client.write_all(question).await.unwrap();
    client.shutdown().await.unwrap();
    let mut answers = String::new();
    client.read_to_string(&mut answers).await.unwrap();
    answers
}

#[tokio::test]
async fn a_connection_that_speaks_http_is_closed_before_its_body_is_read() {
    for options in ["writes = true\npartitioner = \"murmur2\"", "password = \"secret\""] {
        let server = server(options);
        for head in
            ["POST / HTTP/1.1\r\nX: y", "post /\r\nX: y", "PUT / HTTP/1.1\r\nHost: localhost:6379", "GET / HTTP/1.1\r\nhost:localhost"]
        {
            let heard = answers(connect(&server), format!("{head}\r\n\r\nPING\r\nBF.ADD orders o-1\r\nQUIT\r\n").as_bytes()).await;
            let is_first = head.to_ascii_uppercase().starts_with("POST");
            assert!(if is_first { heard.is_empty() } else { heard.lines().count() == 1 }, "{head}: {heard}");
        }
        let command = b"*2\r\n$4\r\nPOST\r\n$1\r\n/\r\nPING\r\n";
        assert_eq!(answers(connect(&server), command).await, "");
    }
}

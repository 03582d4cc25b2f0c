//! Client connections without brokers: the server answers but knows no key.

use super::*;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// The server's timeout of 30 s, plus the pause of 10 s in [`drip`], which notices a closed connection only after the pause.
const READ_LIMIT: Duration = Duration::from_secs(40);

const LIMIT: Duration = Duration::from_secs(60);

fn server(options: &str) -> Arc<Server> {
    let text = format!(
        "[kafka]\nbootstrap_servers = \"127.0.0.1:1\"\n\
         [[topics]]\ninput = \"orders\"\noutput = \"unseen\"\nspace = \"orders\"\nwindow = \"1h\"\nkey = {{ record = \"key\" }}\n\
         filter = {{ capacity = 1000 }}\n\
         [serve]\nlisten = \"127.0.0.1:0\"\nhttp_listen = \"127.0.0.1:0\"\nthreads = 2\n{options}\n"
    );
    let config = Arc::new(Config::of_text(&text));
    let server = Server::new(&config, Follower::start(&config).unwrap()).unwrap();
    // Never drop the server, because dropping its follower would wait for a request that no broker answers.
    std::mem::forget(Arc::clone(&server));
    server
}

fn connect(server: &Arc<Server>) -> DuplexStream {
    let (client, stream) = duplex(64 << 10);
    let server = Arc::clone(server);
    tokio::spawn(async move { connection::serve(&server, stream, (1, None), std::future::pending()).await });
    client
}

/// Sends `piece` every 10 s until the server closes the connection. Returns the elapsed time and the answers, or `None` if the connection
/// is still open after 10 minutes.
async fn drip(mut client: DuplexStream, piece: &[u8]) -> Option<(Duration, String)> {
    let (started, mut answers) = (Instant::now(), Vec::new());
    while client.write_all(piece).await.is_ok() {
        if started.elapsed() > Duration::from_secs(600) {
            return None;
        }
        sleep(Duration::from_secs(10)).await;
    }
    let taken = started.elapsed();
    client.read_to_end(&mut answers).await.unwrap();
    Some((taken, String::from_utf8(answers).unwrap()))
}

async fn answers(mut client: DuplexStream, question: &[u8]) -> String {
    client.write_all(question).await.unwrap();
    client.shutdown().await.unwrap();
    let mut answers = String::new();
    client.read_to_string(&mut answers).await.unwrap();
    answers
}

#[tokio::test]
async fn an_http_connection_is_closed_before_its_body_is_read() {
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

#[tokio::test(start_paused = true)]
async fn a_client_has_one_deadline_for_the_password() {
    let server = server("password = \"secret\"");
    // Parts of a command, whole commands, and wrong passwords do not extend the deadline.
    for piece in ["X", "PING\r\n", "AUTH wrong\r\n", "\r\n"] {
        let (taken, answers) = drip(connect(&server), piece.as_bytes()).await.expect("the server closes the connection");
        assert!(taken <= READ_LIMIT, "{piece:?}: {taken:?}");
        assert!(!answers.contains("PONG"), "{answers}");
    }
    let mut client = connect(&server);
    client.write_all(b"AUTH secret\r\n").await.unwrap();
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(answers(client, b"PING\r\n").await, "+OK\r\n+PONG\r\n");
}

#[tokio::test(start_paused = true)]
async fn a_client_has_one_deadline_for_the_rest_of_a_command() {
    let server = server("");
    let (taken, _) = drip(connect(&server), b"X").await.expect("the server closes the connection");
    assert!(taken <= READ_LIMIT, "{taken:?}");
    // Every command has its own deadline.
    let mut client = connect(&server);
    client.write_all(b"PI").await.unwrap();
    for _ in 0..10 {
        sleep(Duration::from_secs(20)).await;
        client.write_all(b"NG\r\nPI").await.unwrap();
        let mut answer = [0; 7];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"+PONG\r\n");
    }
}

#[tokio::test]
async fn items_too_large_for_an_output_topic_are_not_written() {
    let server = server("writes = true\npartitioner = \"murmur2\"");
    for (bytes, beginning) in
        [(32 << 10, "-LOADING "), ((32 << 10) + 1, "-ERR the parts of a key to write may have at most 32768 bytes in total, got 32769\r\n")]
    {
        let item = "x".repeat(bytes);
        let command = format!("*3\r\n$6\r\nBF.ADD\r\n$6\r\norders\r\n${bytes}\r\n{item}\r\n");
        let answer = answers(connect(&server), command.as_bytes()).await;
        assert!(answer.starts_with(beginning), "{bytes}: {answer}");
    }
}

#[tokio::test]
async fn commands_of_a_transaction_are_limited_by_the_memory_that_they_take() {
    // Short commands, and commands with many short arguments, use the most memory per byte that is sent.
    let (server, long) = (server(""), format!("PING{}\r\n", " x".repeat(1000)));
    for (command, most) in [("X\r\n", 8_000), (&long, 100)] {
        let client = connect(&server);
        let heard = answers(client, format!("MULTI\r\n{}EXEC\r\n", command.repeat(most)).as_bytes()).await;
        assert!(
            heard.contains("-ERR the commands since MULTI take more than 1048576 bytes; send shorter pipelines\r\n"),
            "{}",
            heard.len()
        );
        assert!(heard.ends_with("-EXECABORT Transaction discarded because of previous errors.\r\n"));
    }
}

/// Returns the addresses for Redis and HTTP, a switch that stops the server, and the join handle of the server.
async fn start(server: Arc<Server>) -> (SocketAddr, SocketAddr, oneshot::Sender<()>, JoinHandle<()>) {
    let listening = server.listen().await.unwrap();
    let redis = listening.redis.local_addr().unwrap();
    let http = listening.http.as_ref().unwrap().local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let serving = tokio::spawn(server.serve(listening, Some(2), async { drop(stopped.await) }));
    (redis, http, stop, serving)
}

/// Connects a client and waits for its first answer, which shows that the server has accepted the client.
async fn client(redis: SocketAddr, question: &str, answer: &str) -> TcpStream {
    let mut client = TcpStream::connect(redis).await.unwrap();
    expect(&mut client, question, answer).await;
    client
}

async fn expect(client: &mut TcpStream, question: &str, answer: &str) {
    client.write_all(question.as_bytes()).await.unwrap();
    let mut heard = vec![0; answer.len()];
    timeout(LIMIT, client.read_exact(&mut heard)).await.unwrap().unwrap();
    assert_eq!(String::from_utf8(heard).unwrap(), answer);
}

async fn rest(client: &mut TcpStream) -> String {
    let mut rest = Vec::new();
    timeout(LIMIT, client.read_to_end(&mut rest)).await.unwrap().unwrap();
    String::from_utf8_lossy(&rest).into_owned()
}

async fn http(address: SocketAddr, request: &[u8]) -> String {
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(request).await.unwrap();
    rest(&mut client).await
}

fn get_request(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").into_bytes()
}

#[tokio::test]
async fn a_stopped_server_finishes_commands_and_transactions() {
    let (redis, status, stop, serving) = start(server("")).await;
    let mut idle = client(redis, "PING\r\n", "+PONG\r\n").await;
    let mut queued = client(redis, "MULTI\r\nPING\r\n", "+OK\r\n+QUEUED\r\n").await;
    let mut half = client(redis, "PING\r\n*2\r\n$4\r\nEC", "+PONG\r\n").await;
    let mut kept = TcpStream::connect(status).await.unwrap();
    let alive = "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";
    expect(&mut kept, alive, "HTTP/1.1 200 OK\r\n").await;
    stop.send(()).unwrap();

    assert_eq!(rest(&mut idle).await, "", "an idle client is disconnected immediately");
    assert!(TcpStream::connect(redis).await.is_err(), "no new client is accepted");
    let ready = http(status, &get_request("/readyz")).await;
    assert!(ready.starts_with("HTTP/1.1 503") && ready.ends_with("not ready: the server is stopping\n"), "{ready}");
    assert!(http(status, &get_request("/livez")).await.starts_with("HTTP/1.1 200"));
    kept.write_all(alive.as_bytes()).await.unwrap();
    let last = rest(&mut kept).await;
    assert!(last.contains("connection: close"), "{last}");
    expect(&mut half, "HO\r\n$2\r\nhi\r\n", "$2\r\nhi\r\n").await;
    assert_eq!(rest(&mut half).await, "");
    expect(&mut queued, "PING\r\nEXEC\r\n", "+QUEUED\r\n*2\r\n+PONG\r\n+PONG\r\n").await;
    assert_eq!(rest(&mut queued).await, "");
    timeout(LIMIT, serving).await.unwrap().unwrap();
    assert!(TcpStream::connect(status).await.is_err(), "the socket is closed");
}

#[tokio::test]
async fn a_stopped_server_waits_for_a_client_no_longer_than_the_shutdown_timeout() {
    let server = server("[worker]\nshutdown_timeout = \"100ms\"");
    let (redis, _, stop, serving) = start(server).await;
    let _queued = client(redis, "MULTI\r\n", "+OK\r\n").await;
    stop.send(()).unwrap();
    timeout(LIMIT, serving).await.unwrap().unwrap();
}

#[tokio::test]
async fn http_accepts_the_same_passwords_as_redis() {
    let password = "pässwörd é\u{1f511}";
    let (redis, status, _stop, _serving) = start(server(&format!("password = \"{password}\""))).await;
    client(redis, &format!("*2\r\n$4\r\nAUTH\r\n${}\r\n{password}\r\n", password.len()), "+OK\r\n").await;
    let ask = async |authorization: String| {
        let head = "POST /api/v1/spaces/orders/contains HTTP/1.1\r\nHost: localhost\r\nConnection: close";
        http(status, format!("{head}\r\n{authorization}\r\nContent-Length: 12\r\n\r\n{{\"keys\":[1]}}").as_bytes()).await
    };
    for scheme in ["Bearer", "bearer", "BEARER"] {
        // The password is correct, but the answer is unknown, because there are no brokers.
        let answer = ask(format!("Authorization: {scheme} {password}")).await;
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    }
    for header in ["X-None: 1", "Authorization: Bearer", "Authorization: Bearer wrong", &format!("Authorization: Basic {password}")] {
        let answer = ask(header.to_owned()).await;
        assert!(answer.starts_with("HTTP/1.1 401") && answer.contains("www-authenticate: Bearer\r\n"), "{header}: {answer}");
    }
}

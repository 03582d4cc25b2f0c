//! The connection of one client: reads bytes, runs commands, and sends answers.
//!
//! Manages the buffers of a connection, their limits, and the timeouts for clients. A connection stops reading from a client that does not
//! read its answers, and frees large buffers while the client is idle.

use super::Server;
use super::command::Command;
use super::commands::{self, Next};
use super::pending::Pending;
use super::resp::{Answers, Parser};
use super::session::Session;
use super::writes;
use crate::stats::add;
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::{Instant, timeout_at};

const READ_BYTES: usize = 64 << 10;
/// Size of the pending answers in bytes at which the connection sends them before it runs more commands.
const ANSWER_BYTES: usize = 1 << 20;
/// Number of pending write commands at which the connection waits for their writes before it runs more commands.
const WAITING_MAX: usize = 1 << 10;
/// Run time of a client's commands after which other clients of the thread get a turn.
const TURN: Duration = Duration::from_millis(1);
/// The number of commands between two checks of the time.
const TURN_COMMANDS: usize = 16;
/// Capacity in bytes that the answer buffer and the input buffer of an idle connection each keep.
const IDLE_BYTES: usize = 1 << 10;
/// The time that a client has to send the password, and the time to send the rest of a command. Receiving more bytes does not extend the
/// time.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The timeout for a client that does not read its answers. Each part of an answer that the client reads restarts the timeout.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

thread_local! {
    /// The read buffer, shared by all connections of a thread.
    static READ: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
    /// The pending lookups of the connection that is being processed.
    static PENDING: RefCell<Pending> = RefCell::default();
}

struct Connection {
    session: Session,
    parser: Parser,
    /// Bytes that were read but not processed yet.
    input: Vec<u8>,
    answers: Answers,
    /// The run time of this client's commands since other clients last had a turn.
    busy: Duration,
    /// The deadline for the password. `None` while the client is authenticated.
    password_due: Option<Instant>,
    /// The deadline for the rest of the command that starts in `input`.
    command_due: Option<Instant>,
}

/// The next step after the answers are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Read,
    /// Process commands that were already received.
    Work,
    Close,
}

/// Serves a client until the client disconnects, sends QUIT or HTTP, violates the protocol, or misses a deadline. After `stop`, the
/// connection ends as soon as the client has no unfinished command or transaction.
pub(super) async fn serve(
    server: &Server,
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    (id, address): (u64, Option<SocketAddr>),
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let mut stop = pin!(stop);
    let mut connection = Connection::new(server, id);
    while connection.wait(&mut stream, stop.as_mut()).await? > 0 {
        loop {
            let then = connection.work(server);
            if !connection.session.waiting.is_empty() {
                writes::settle(server, &mut connection.session.waiting, &mut connection.answers).await;
            }
            if let Err(error) = connection.send(&mut stream).await {
                if error.kind() == io::ErrorKind::TimedOut {
                    add(&server.stats.dropped, 1);
                    tracing::warn!(
                        client = id,
                        address = address.map(tracing::field::display),
                        "closing the connection because the client does not read its replies; check that the application reads all replies and that the network to the client works"
                    );
                }
                return Err(error);
            }
            if then == Then::Work || connection.busy >= TURN {
                connection.busy = Duration::ZERO;
                tokio::task::yield_now().await;
            }
            match then {
                Then::Read => break,
                Then::Work => {}
                Then::Close => return close(&mut stream).await,
            }
        }
        connection.rest();
    }
    close(&mut stream).await
}

async fn close(stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    before(Instant::now() + WRITE_TIMEOUT, stream.shutdown()).await
}

/// Returns the error `TimedOut` if `work` does not end before the deadline.
async fn before<T>(deadline: Instant, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout_at(deadline, work).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

impl Connection {
    fn new(server: &Server, id: u64) -> Self {
        let mut connection = Self {
            session: Session::new(id, server.password.is_none()),
            parser: Parser::default(),
            input: Vec::new(),
            answers: Answers::default(),
            busy: Duration::ZERO,
            password_due: None,
            command_due: None,
        };
        connection.set_password_due();
        connection
    }

    /// Starts the password timeout if the client is not authenticated, for example after RESET. Otherwise, ends the timeout.
    fn set_password_due(&mut self) {
        if self.session.is_authenticated {
            self.password_due = None;
        } else if self.password_due.is_none() {
            self.password_due = Some(Instant::now() + READ_TIMEOUT);
        }
    }

    /// Reads bytes and returns their number. Returns 0 if the client has closed the connection, or if the server stops and the client is
    /// idle. Fails if a deadline has passed.
    async fn wait(&mut self, stream: &mut (impl AsyncRead + Unpin), stop: Pin<&mut impl Future<Output = ()>>) -> io::Result<usize> {
        if !self.input.is_empty() && self.command_due.is_none() {
            self.command_due = Some(Instant::now() + READ_TIMEOUT);
        }
        let Some(deadline) = self.password_due.into_iter().chain(self.command_due).min() else {
            return self.read(stream, stop).await;
        };
        // Check the deadline here, because `timeout_at` polls the read before the timer. A client that always has more bytes ready would
        // never time out.
        if deadline <= Instant::now() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        before(deadline, self.read(stream, stop)).await
    }

    async fn read(&mut self, stream: &mut (impl AsyncRead + Unpin), mut stop: Pin<&mut impl Future<Output = ()>>) -> io::Result<usize> {
        poll_fn(|context| {
            READ.with_borrow_mut(|room| {
                let mut buffer = ReadBuf::new(room);
                match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                    Poll::Ready(Ok(())) => {
                        self.input.extend_from_slice(buffer.filled());
                        Poll::Ready(Ok(buffer.filled().len()))
                    }
                    Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                    Poll::Pending if self.is_idle() => stop.as_mut().poll(context).map(|()| Ok(0)),
                    Poll::Pending => Poll::Pending,
                }
            })
        })
        .await
    }

    /// True if the client has no unfinished command or transaction.
    fn is_idle(&self) -> bool {
        self.input.is_empty() && self.session.queued.is_none()
    }

    fn work(&mut self, server: &Server) -> Then {
        let (started, mut commands, mut begin) = (std::time::Instant::now(), 0, 0);
        let then = PENDING.with_borrow_mut(|pending| {
            let mut rounds = 0_usize;
            let then = loop {
                rounds += 1;
                let is_over = rounds.is_multiple_of(TURN_COMMANDS) && started.elapsed() >= TURN;
                if is_over || self.answers.bytes.len() >= ANSWER_BYTES || self.session.waiting.len() >= WAITING_MAX {
                    break Then::Work;
                }
                if commands::run_queued(&mut self.session, server, pending, &mut self.answers) {
                    continue;
                }
                let command = &self.input[begin..];
                let taken = match self.parser.parse(command, self.session.is_authenticated) {
                    Ok(Some(taken)) => taken,
                    Ok(None) => break Then::Read,
                    Err(error) => {
                        pending.flush(server, &mut self.answers);
                        self.answers.error("ERR", &error.to_string());
                        break Then::Close;
                    }
                };
                let command = Command { bytes: &command[..taken], parts: self.parser.parts() };
                commands += u64::from(command.len() > 0);
                let next = commands::run(&mut self.session, server, command, pending, &mut self.answers);
                begin += taken;
                self.parser.reset();
                if next == Next::Close {
                    break Then::Close;
                }
            };
            pending.flush(server, &mut self.answers);
            then
        });
        self.input.drain(..begin);
        let took = started.elapsed();
        self.busy += took;
        self.set_password_due();
        if begin > 0 {
            self.command_due = None;
        }
        if commands > 0 {
            add(&server.stats.commands, commands);
            server.stats.answer_time.observe(took);
        }
        then
    }

    async fn send(&mut self, stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        if self.answers.bytes.is_empty() {
            return Ok(());
        }
        // Try to write without a timer first, because the system usually accepts all bytes immediately.
        let bytes = &self.answers.bytes;
        let at_once = poll_fn(|context| match Pin::new(&mut *stream).poll_write(context, bytes) {
            Poll::Ready(written) => Poll::Ready(written.map(Some)),
            Poll::Pending => Poll::Ready(Ok(None)),
        });
        let written = at_once.await?.unwrap_or(0);
        let mut rest = &bytes[written..];
        while !rest.is_empty() {
            let limit = Instant::now() + WRITE_TIMEOUT;
            let written = before(self.password_due.map_or(limit, |due| due.min(limit)), stream.write(rest)).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            rest = &rest[written..];
        }
        // With TLS, some bytes may still be buffered. Try to flush without a timer first, because a flush usually sends them immediately.
        let flushed = poll_fn(|context| Poll::Ready(Pin::new(&mut *stream).poll_flush(context))).await;
        match flushed {
            Poll::Ready(done) => done?,
            Poll::Pending => before(Instant::now() + WRITE_TIMEOUT, stream.flush()).await?,
        }
        self.answers.bytes.clear();
        Ok(())
    }

    fn rest(&mut self) {
        self.answers.bytes.shrink_to(IDLE_BYTES);
        self.input.shrink_to(IDLE_BYTES);
        self.session.waiting.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::follower::Follower;
    use std::cell::Cell;
    use std::rc::Rc;
    use tokio::io::{AsyncReadExt as _, duplex};
    use tokio::task::{LocalSet, spawn_local};

    fn server() -> std::sync::Arc<Server> {
        let topic =
            "[[topics]]\ninput = \"in\"\noutput = \"out\"\nkey = { record = \"key\" }\nwindow = \"1h\"\nfilter = { capacity = 1000 }\n";
        let config = Config::of_text(&format!("[kafka]\nbootstrap_servers = \"localhost:1\"\n{topic}"));
        Server::new(&config, Follower::without_brokers(&config)).unwrap()
    }

    /// Serves a client that sends `bytes`. Returns the answers, and true if the client finished before the other client of the thread.
    async fn answered(server: std::sync::Arc<Server>, bytes: &[u8], other: Rc<Cell<bool>>, done: Rc<Cell<bool>>) -> (Vec<u8>, bool) {
        let (mut client, stream) = duplex(64 << 20);
        client.write_all(bytes).await.unwrap();
        client.shutdown().await.unwrap();
        serve(&server, stream, (1, None), std::future::pending()).await.unwrap();
        done.set(true);
        let other_was_done = other.get();
        let mut answers = Vec::new();
        client.read_to_end(&mut answers).await.unwrap();
        (answers, !other_was_done)
    }

    #[test]
    fn a_long_exec_does_not_block_other_clients_of_the_thread() {
        const COMMANDS: usize = 5_000;
        let (server, runtime) = (server(), tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
        LocalSet::new().block_on(&runtime, async {
            let (long, short) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
            let exec = ["MULTI\r\n", &"INFO\r\n".repeat(COMMANDS), "EXEC\r\n"].concat();
            let first = {
                let (server, long, short) = (server.clone(), long.clone(), short.clone());
                spawn_local(async move { answered(server, exec.as_bytes(), short, long).await })
            };
            let second = spawn_local(async move { answered(server, b"PING\r\n", long, short).await });
            let (pong, came_first) = second.await.unwrap();
            assert_eq!((&pong[..], came_first), (&b"+PONG\r\n"[..], true), "the client waited for all commands of the other client");
            let answers = String::from_utf8(first.await.unwrap().0).unwrap();
            assert_eq!(answers.matches("+QUEUED\r\n").count(), COMMANDS);
            assert_eq!((answers.matches(&format!("*{COMMANDS}\r\n")).count(), answers.matches("# Server").count()), (1, COMMANDS));
        });
    }
}

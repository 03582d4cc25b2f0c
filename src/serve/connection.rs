//! One client's connection: bytes in, commands done, answers out.
//!
//! Owns what is kept of a client, how much of that there may be, and how long a client may take. Must never read more from a
//! client that does not take its answers, nor keep room for one that is silent.

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
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::{Instant, timeout_at};

/// Most bytes that are read at a time.
const READ_BYTES: usize = 64 << 10;
/// Answers are sent once there are so many bytes of them.
const ANSWER_BYTES: usize = 1 << 20;
/// And no more commands are done before so many that write are.
const WAITING_MAX: usize = 1 << 10;
/// The time for which a client's commands run before other clients of the thread have their turn.
const TURN: Duration = Duration::from_millis(1);
/// Commands between two looks at the clock.
const TURN_COMMANDS: usize = 16;
/// Room that a silent connection keeps.
const IDLE_BYTES: usize = 1 << 10;
/// How long a client may take to send the password, and to send the rest of a command. Further bytes do not extend either.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may read nothing while answers wait for it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

thread_local! {
    /// What is read into, by all connections of a thread.
    static READ: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
    /// What is asked for, by the connection that is at work.
    static PENDING: RefCell<Pending> = RefCell::default();
}

/// The state of a connection.
struct Connection {
    session: Session,
    parser: Parser,
    /// Bytes that were read and not processed yet: the beginning of a command.
    input: Vec<u8>,
    answers: Answers,
    /// The time that its commands took since other clients had their turn.
    busy: Duration,
    /// The deadline for the password, until the client has given it.
    password_due: Option<Instant>,
    /// The deadline for the rest of the command that `input` begins.
    command_due: Option<Instant>,
}

/// What to do once the answers are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Read,
    /// There are more commands.
    Work,
    Close,
}

/// Serves a client until it leaves, breaks the protocol, or misses a deadline. After `stop`, the connection ends as soon as the
/// client has no unfinished command or transaction.
pub(super) async fn serve(
    server: &Server,
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    id: u64,
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
                    tracing::warn!(client = id, "closing the connection of a client that does not read its answers");
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

/// Tells the client that no more answers will come.
async fn close(stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    before(Instant::now() + WRITE_TIMEOUT, stream.shutdown()).await
}

/// Waits for a client until a deadline.
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

    /// Starts the time for the password if the client has yet to give it.
    fn set_password_due(&mut self) {
        if self.session.is_authenticated {
            self.password_due = None;
        } else if self.password_due.is_none() {
            self.password_due = Some(Instant::now() + READ_TIMEOUT);
        }
    }

    /// Reads bytes, and returns how many. Returns 0 once the client or the server ends the connection.
    async fn wait(&mut self, stream: &mut (impl AsyncRead + Unpin), stop: Pin<&mut impl Future<Output = ()>>) -> io::Result<usize> {
        if !self.input.is_empty() && self.command_due.is_none() {
            self.command_due = Some(Instant::now() + READ_TIMEOUT);
        }
        let Some(deadline) = self.password_due.into_iter().chain(self.command_due).min() else {
            return self.read(stream, stop).await;
        };
        // A timer alone never ends a client that always has more bytes ready.
        if deadline <= Instant::now() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        before(deadline, self.read(stream, stop)).await
    }

    /// Reads bytes without a deadline, and returns how many.
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

    /// True if the client has neither a command nor a transaction to finish.
    fn is_idle(&self) -> bool {
        self.input.is_empty() && self.session.queued.is_none()
    }

    /// Runs the commands that are there, for one turn.
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

    /// Sends all answers.
    async fn send(&mut self, stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        if self.answers.bytes.is_empty() {
            return Ok(());
        }
        // Most often the system takes them at once, and no timer is needed.
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
        // What encrypts may keep some; most often nothing is kept.
        let flushed = poll_fn(|context| Poll::Ready(Pin::new(&mut *stream).poll_flush(context))).await;
        match flushed {
            Poll::Ready(done) => done?,
            Poll::Pending => before(Instant::now() + WRITE_TIMEOUT, stream.flush()).await?,
        }
        self.answers.bytes.clear();
        Ok(())
    }

    /// Gives back room that is not needed while the client is silent.
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
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("unseen.toml");
        let topic =
            "[[topics]]\ninput = \"in\"\noutput = \"out\"\nkey = { record = \"key\" }\nwindow = \"1h\"\nfilter = { capacity = 1000 }\n";
        std::fs::write(&file, format!("[kafka]\nbootstrap_servers = \"localhost:1\"\n{topic}")).unwrap();
        let config = Config::load(&file, &[]).unwrap();
        Server::new(&config, Follower::without_brokers(&config)).unwrap()
    }

    /// What a client gets for these bytes, and whether the other client of its thread was still being answered then.
    async fn answered(server: std::sync::Arc<Server>, bytes: &[u8], other: Rc<Cell<bool>>, done: Rc<Cell<bool>>) -> (Vec<u8>, bool) {
        let (mut client, stream) = duplex(64 << 20);
        client.write_all(bytes).await.unwrap();
        client.shutdown().await.unwrap();
        serve(&server, stream, 1, std::future::pending()).await.unwrap();
        done.set(true);
        let other_was_done = other.get();
        let mut answers = Vec::new();
        client.read_to_end(&mut answers).await.unwrap();
        (answers, !other_was_done)
    }

    #[test]
    fn a_client_with_a_long_exec_does_not_hold_up_others_of_its_thread() {
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
            assert_eq!((&pong[..], came_first), (&b"+PONG\r\n"[..], true), "it waited for all of the other's commands");
            let answers = String::from_utf8(first.await.unwrap().0).unwrap();
            assert_eq!(answers.matches("+QUEUED\r\n").count(), COMMANDS);
            assert_eq!((answers.matches(&format!("*{COMMANDS}\r\n")).count(), answers.matches("# Server").count()), (1, COMMANDS));
        });
    }
}

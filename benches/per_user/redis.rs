//! Memory of a filter per user in Redis, measured by `used_memory`.

use crate::table::{Table, thousands};
use std::fmt::Display;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// Number of ids inserted for one figure.
const IDS_MEASURED: u64 = 10_000_000;
const USERS_MOST: u64 = 100_000;
/// Initial capacity of a filter that grows.
const LEAST: u64 = 100;

struct Redis {
    answers: BufReader<TcpStream>,
    commands: Vec<u8>,
}

impl Redis {
    fn connect(address: &str) -> Self {
        Self { answers: BufReader::new(TcpStream::connect(address).expect("Redis accepts connections")), commands: Vec::new() }
    }

    /// Queues a command.
    fn send(&mut self, words: &[&dyn Display]) {
        write!(self.commands, "*{}\r\n", words.len()).expect("writing to memory");
        for word in words {
            let word = word.to_string();
            write!(self.commands, "${}\r\n{word}\r\n", word.len()).expect("writing to memory");
        }
        if self.commands.len() > 1 << 20 {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.answers.get_mut().write_all(&self.commands).expect("Redis reads commands");
        self.commands.clear();
    }

    /// Sends a command, and returns its reply.
    fn ask(&mut self, words: &[&dyn Display]) -> String {
        self.send(words);
        self.flush();
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("Redis answers");
        let Some(length) = line.strip_prefix('$') else { return line };
        let mut text = vec![0; length.trim().parse::<usize>().expect("a length") + 2];
        self.answers.read_exact(&mut text).expect("a complete reply");
        String::from_utf8(text).expect("a text")
    }

    fn used_memory(&mut self) -> f64 {
        let text = self.ask(&[&"INFO", &"memory"]);
        let line = text.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("INFO has this line");
        line.parse().expect("a number")
    }

    /// Returns the bytes per user of the data that these commands create.
    fn bytes_per_user(&mut self, users: u64, commands: impl Fn(&mut Self, &str)) -> f64 {
        self.ask(&[&"FLUSHALL"]);
        let before = self.used_memory();
        self.send(&[&"CLIENT", &"REPLY", &"OFF"]);
        (0..users).for_each(|user| commands(self, &format!("seen:{user}")));
        self.ask(&[&"CLIENT", &"REPLY", &"ON"]);
        let bytes = (self.used_memory() - before) / users as f64;
        assert_eq!(self.ask(&[&"DBSIZE"]), format!(":{users}\r\n"));
        assert!(!self.ask(&[&"INFO", &"errorstats"]).contains("count"), "a command failed");
        bytes
    }

    /// Creates a filter with a capacity, and inserts ids.
    fn filter(&mut self, name: &str, rate: f64, capacity: u64, ids: u64) {
        self.send(&[&"BF.RESERVE", &name, &rate, &capacity]);
        let words: Vec<_> = ["BF.MADD".to_owned(), name.to_owned()].into_iter().chain((0..ids).map(|id| id.to_string())).collect();
        self.send(&words.iter().map(|word| word as &dyn Display).collect::<Vec<_>>());
    }
}

/// Returns a table of bytes per user, for `BF.RESERVE` and other commands. Empties the Redis, which must therefore be empty at
/// the start.
pub fn table(address: &str, rate: f64, capacity: u64, latest: u64, ids: &[u64]) -> String {
    let mut redis = Redis::connect(address);
    assert_eq!(redis.ask(&[&"DBSIZE"]), ":0\r\n", "Redis must be empty, because this benchmark deletes its data");
    let text = "x".repeat((unseen::filter::plain_bits(rate) * capacity as f64 / 8.0).ceil() as usize);
    let string = redis.bytes_per_user(USERS_MOST, |redis, name| redis.send(&[&"SET", &name, &text]));
    let list = redis.bytes_per_user(USERS_MOST, |redis, name| {
        (0..latest).for_each(|id| redis.send(&[&"RPUSH", &name, &(1_700_000_000 + id)]));
    });
    let reserved = redis.bytes_per_user(USERS_MOST, |redis, name| redis.filter(name, rate, capacity, 10));
    let mut table =
        Table::new(&["ids per user", "BF.RESERVE for 4,000: bytes per user", "BF.RESERVE for 100, grows: bytes per user", "bytes per id"]);
    for &ids in ids {
        let users = USERS_MOST.min(IDS_MEASURED / ids);
        let grown = redis.bytes_per_user(users, |redis, name| redis.filter(name, rate, LEAST, ids));
        let figures = [thousands(reserved), thousands(grown), format!("{:.2}", grown / ids as f64)];
        table.row([thousands(ids as f64)].into_iter().chain(figures).collect());
    }
    redis.ask(&[&"FLUSHALL"]);
    format!(
        "In {} at a rate of {rate:.0e}. A string of {} bytes takes {} bytes, and a list of {latest} ten-digit numbers takes {} bytes:\n\n{table}",
        version(&mut redis),
        thousands(text.len() as f64),
        thousands(string),
        thousands(list),
    )
}

fn version(redis: &mut Redis) -> String {
    let text = redis.ask(&[&"INFO", &"everything"]);
    let version = text.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or("?");
    let module = text.lines().find(|line| line.starts_with("module:name=bf,")).and_then(|line| line.split(',').nth(1));
    format!("Redis {version}, RedisBloom {}", module.and_then(|module| module.strip_prefix("ver=")).unwrap_or("?"))
}

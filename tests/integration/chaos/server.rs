//! A server alongside the workers, with the same configuration file. The plan kills, stops, and cuts off the server. The test queries the
//! server for every key.
//!
//! The test checks the answers at the end, when it knows what the group has read. An answer must report a key as seen if the group had
//! certainly committed the key by the answer's `as_of_ms`, unless the key was retracted or has expired.

use super::options::ON_CHANGE;
use super::plan::Trouble;
use super::stage::{BEFORE, Stage};
use super::truth::{self, Answer, parts};
use crate::harness::{Asker, Reader, Reply, TestRecord, Way, Worker, client, http};
use crate::stream::PARTITIONS;
use rdkafka::consumer::{BaseConsumer, Consumer};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The number of queried keys that no record has. The answers about these keys show the false-positive rate.
const STRANGERS: usize = 3_000;
/// The maximum wait until the transactions in the changelog have ended. If they have not ended by then, the test does not record the
/// committed offsets.
const PATIENCE: Duration = Duration::from_secs(2);
/// The pause between two queries.
const INTERVAL: Duration = Duration::from_millis(500);
/// The pause after a response with status 503. It is short, because the test wants an answer as soon as the server has read the changelogs.
const SHORTLY: Duration = Duration::from_millis(20);

pub struct Server {
    process: Option<Worker>,
    began_ms: i64,
    /// The address for Redis clients and the HTTP address.
    addresses: (String, String),
    trouble: Option<(Trouble, Instant)>,
    due: Instant,
    /// The probability that the server reports an unseen key as seen.
    rate: f64,
    /// The queried keys, in the order of the HTTP query [`Server::question`].
    keys: Vec<Vec<u8>>,
    question: String,
    /// A `read_committed` consumer and a `read_uncommitted` consumer.
    consumers: [BaseConsumer; 2],
    /// Reads the output if the plan uses `repartition` with `exactly_once`. The worker then copies the input to another topic first, so
    /// only the output shows which records the worker has processed.
    output: Option<Reader>,
    sights: Vec<Sight>,
    /// Each answer with the end offsets of the input after the answer. If the broker did not respond, all end offsets are `i64::MAX`.
    answers: Vec<(Answer, Vec<i64>)>,
}

/// The group's committed offsets and its output at one moment.
struct Sight {
    time_ms: i64,
    offsets: Vec<i64>,
    /// The number of emitted records per partition.
    came: Vec<usize>,
}

impl Server {
    fn new(address: &str, output: Option<Reader>, records: impl Iterator<Item = Vec<u8>>) -> Self {
        let strangers = (0..STRANGERS).map(|number| format!("{number}/x-{number}").into_bytes());
        let keys: Vec<_> = records.collect::<BTreeSet<_>>().into_iter().chain(strangers).collect();
        let parts: Vec<_> = keys.iter().map(|key| parts(key)).collect();
        let consumer = |isolation| client(address).set("isolation.level", isolation).create().expect("a consumer");
        Self {
            process: None,
            began_ms: 0,
            addresses: Default::default(),
            trouble: None,
            due: Instant::now(),
            rate: 0.0,
            question: serde_json::json!({ "keys": parts }).to_string(),
            keys,
            consumers: ["read_committed", "read_uncommitted"].map(consumer),
            output,
            sights: Vec::new(),
            answers: Vec::new(),
        }
    }
}

impl Stage<'_> {
    /// Sets up and starts the server, unless the plan has no changelog that the server can follow, or emits changed records
    /// ([`ON_CHANGE`]).
    pub fn begin_server(&mut self) {
        if self.conditions.options.has("state.changelog = false") || self.conditions.options.has(ON_CHANGE) {
            return;
        }
        if let Some(broker) = &self.broker {
            broker.ways().iter().for_each(Way::restore);
        }
        let (stream, options) = (&self.stream, &self.conditions.options);
        // With `at_least_once`, the worker can emit a record before it logs the key. The output then does not show which keys the server
        // must know.
        let shows = options.has("repartition = true") && options.has("delivery = \"exactly_once\"");
        let output = shows.then(|| Reader::new(&stream.broker, &stream.output, PARTITIONS));
        self.server = Some(Server::new(&stream.broker, output, stream.records.iter().map(truth::id)));
        self.start_server();
    }

    fn start_server(&mut self) {
        let conditions = self.conditions;
        let (filter, rate) = conditions.server.option("news", &conditions.options, &self.memory, conditions.capacity);
        let mut overrides = self.conditions.options.overrides();
        overrides.extend(filter);
        overrides.extend(self.conditions.options.rule_of_server(&self.memory));
        overrides.extend(self.broker.as_ref().map(|broker| format!("kafka.bootstrap_servers={}", broker.servers_by_way())));
        let overrides: Vec<_> = overrides.iter().map(String::as_str).collect();
        let began_ms = now_ms();
        let (process, asked, watched) = self.stream.setup.serve_by(&self.write_config("server"), "server", &overrides);
        self.story.tell("the server starts");
        if let Some(server) = &mut self.server {
            (server.process, server.addresses, server.began_ms) = (Some(process), (asked, watched), began_ms);
            server.rate = rate;
        }
    }

    pub fn trouble_server(&mut self, trouble: Trouble, time: Duration) {
        self.end_trouble();
        let Some(server) = &mut self.server else { return };
        server.trouble = Some((trouble, Instant::now() + time));
        match (trouble, &mut server.process) {
            (Trouble::Killed, process) => process.take().into_iter().for_each(|mut process| process.kill9()),
            (Trouble::Stopped, process) => process.iter_mut().for_each(Worker::sigstop),
            (Trouble::CutOff, _) => self.broker.iter().flat_map(|broker| broker.ways()).for_each(Way::cut),
        }
    }

    /// Ends the server's fault when its time is over, and queries the server at intervals. Panics if the server has exited by itself.
    pub fn tend_server(&mut self) {
        let Some(server) = &mut self.server else { return };
        if let Some(status) = server.process.as_mut().and_then(Worker::ended) {
            panic!("the server ended by itself with {status}");
        }
        let is_over = server.trouble.is_some_and(|(_, until)| Instant::now() >= until);
        if is_over {
            self.end_trouble();
        }
        // Right after a fault, the server may lack recent keys, so this is a good time for a query.
        if is_over || self.server.as_ref().is_some_and(|server| Instant::now() >= server.due) {
            self.ask_server();
        }
    }

    fn end_trouble(&mut self) {
        let Some(server) = &mut self.server else { return };
        let Some((trouble, _)) = server.trouble.take() else { return };
        self.story.tell(format_args!("the server is not {trouble:?} any more"));
        match trouble {
            Trouble::Killed => self.start_server(),
            Trouble::Stopped => server.process.iter_mut().for_each(Worker::sigcont),
            Trouble::CutOff => self.broker.iter().flat_map(|broker| broker.ways()).for_each(Way::restore),
        }
    }

    fn renew_server(&mut self) {
        self.story.tell("the server gets SIGTERM, because the workers have another configuration file");
        if let Some(process) = self.server.as_mut().and_then(|server| server.process.take()) {
            process.drain();
        }
        self.start_server();
    }

    /// Records the committed offsets and the number of emitted records. Records nothing if a transaction in the changelog does not end
    /// within [`PATIENCE`], or if a request to the brokers fails.
    pub fn note_what_is_committed(&mut self) {
        let Some(server) = &mut self.server else { return };
        let came = server.output.iter_mut().flat_map(|output| {
            output.poll(SHORTLY);
            output.records.iter().map(Vec::len)
        });
        let came = came.collect();
        let (Some(offsets), Some(there)) = (self.group_offsets(), self.ends(1, &self.changelog())) else { return };
        // The commit marker of a transaction can reach the offsets topic before it reaches the changelog, which the server reads. So this
        // waits until the last stable offsets of the changelog have reached the high watermarks `there`.
        let stands = |stage: &mut Self| {
            stage.ends(0, &stage.changelog()).is_some_and(|ends| ends.iter().zip(&there).all(|(end, there)| end >= there))
        };
        if self.wait_for(PATIENCE, stands)
            && let Some(server) = &mut self.server
        {
            server.sights.push(Sight { time_ms: now_ms(), offsets, came });
        }
    }

    fn changelog(&self) -> String {
        format!("{}-news-changelog", self.stream.setup.group())
    }

    /// The end offsets of a topic, from one of [`Server::consumers`]. `None` if the broker does not respond.
    fn ends(&self, consumer: usize, topic: &str) -> Option<Vec<i64>> {
        let consumer = &self.server.as_ref()?.consumers[consumer];
        let end = |partition| consumer.fetch_watermarks(topic, partition, Duration::from_secs(1)).ok().map(|(_, end)| end);
        (0..).take(PARTITIONS).map(end).collect()
    }

    fn ask_server(&mut self) {
        let Some(server) = &mut self.server else { return };
        server.due = Instant::now() + INTERVAL;
        if server.process.is_none() || matches!(server.trouble, Some((Trouble::Killed | Trouble::Stopped, _))) {
            return;
        }
        let (code, body) = http(&server.addresses.1, "POST /api/v1/spaces/news/contains", &server.question);
        if code == 503 {
            server.due = Instant::now() + SHORTLY;
        }
        match code {
            503 if body.contains("use the same configuration file") => self.renew_server(),
            503 => {}
            200 => {
                let mut answer: Value = serde_json::from_str(&body).expect("JSON");
                let seen: Vec<bool> = serde_json::from_value(answer["seen"].take()).expect("a list");
                // An answer has no `as_of_ms` if the server becomes ready while it answers. The server then knows all keys that were
                // committed before it started.
                let as_of_ms = answer["as_of_ms"].as_i64().unwrap_or(server.began_ms);
                let rate = server.rate;
                self.story.tell(format_args!("the server: {} seen, as of {as_of_ms}", seen.iter().filter(|&&seen| seen).count()));
                let ends = self.ends(1, &self.stream.input).unwrap_or_else(|| vec![i64::MAX; PARTITIONS]);
                if let Some(server) = &mut self.server {
                    server.answers.push((Answer { as_of_ms, seen, rate }, ends));
                }
            }
            _ => panic!("the server responded with status {code}: {body}"),
        }
    }

    /// Waits until the server has caught up with all commits, queries it over HTTP and with the Redis protocol, and stops it. Panics unless
    /// the two answers are the same.
    pub fn finish_server(&mut self) {
        if self.server.is_none() {
            return;
        }
        self.end_trouble();
        self.wait("no transaction is in doubt", |stage| {
            let sights = |stage: &Self| stage.server.as_ref().map(|server| server.sights.len());
            let before = sights(stage);
            stage.note_what_is_committed();
            sights(stage) > before
        });
        let now = now_ms();
        self.wait("the server has caught up", |stage| {
            let (_, body) = http(stage.watched(), "GET /api/v1/spaces", "");
            if body.contains("use the same configuration file") {
                stage.renew_server();
            }
            let spaces: Value = serde_json::from_str(&body).expect("JSON");
            spaces[0]["as_of_ms"].as_i64().is_some_and(|as_of| as_of >= now) && http(stage.watched(), "GET /readyz", "").0 == 200
        });
        self.ask_server();
        let Some(server) = &mut self.server else { return };
        let commands = server
            .keys
            .iter()
            .map(|key| parts(key))
            .map(|(user, item)| ["BF.EXISTS".to_owned(), format!("news:{{{user}}}"), item.to_owned()].into());
        let replies = Asker::connect(&server.addresses.0).ask_all(&commands.collect::<Vec<_>>());
        let (last, _) = server.answers.last().expect("it was just asked");
        assert!(last.as_of_ms >= now, "`as_of_ms` of the last answer is before the time that the test waited for");
        let same = last.seen.iter().zip(&replies).all(|(&seen, reply)| *reply == Reply::Integer(seen.into()));
        assert!(same, "Redis clients and HTTP clients get different answers");
        server.process.take().expect("it runs").drain();
    }

    fn watched(&self) -> &str {
        self.server.as_ref().map_or("", |server| &server.addresses.1)
    }

    /// Panics unless every answer is correct. A key of a record from before the group's start may be reported as seen or as unseen.
    pub fn judge_server(&mut self, inputs: &[Vec<Vec<TestRecord>>]) {
        let Some(server) = self.server.take() else { return };
        let before: BTreeSet<_> = self.stream.records[..BEFORE].iter().map(truth::id).collect();
        let last = server.sights.last().expect("the last is of the end");
        let is_brought = self.conditions.options.has("repartition = true");
        // With `start = "latest"`, `inputs` lacks the first records of the input, so records are counted from the end.
        let index = |offsets: &[i64]| -> Vec<usize> {
            let records = inputs[0].iter().map(Vec::len).zip(&last.offsets).zip(offsets);
            records.map(|((count, end), offset)| count.saturating_sub(usize::try_from(end - offset).unwrap_or(0))).collect()
        };
        for (answer, ends) in &server.answers {
            let Some(sight) = server.sights.iter().rev().find(|sight| sight.time_ms <= answer.as_of_ms) else { continue };
            let is_judged = !is_brought || sight.time_ms == last.time_ms;
            let from = if is_judged { index(&sight.offsets) } else { vec![0; PARTITIONS] };
            let mut known = truth::known(&self.conditions.options, self.promise, &self.seeds, inputs, &from, &index(ends));
            for (records, &came) in server.output.iter().flat_map(|output| &output.records).zip(&sight.came) {
                known.seen.extend(truth::ids_in_space(&records[..came]));
            }
            answer.judge(&server.keys, &known, &before);
            self.story.judged();
        }
    }
}

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock past 1970").as_millis();
    i64::try_from(now).expect("some decades")
}

//! Requests, answers, and their faults.
//!
//! A broker may serve a request after the client has lost its connection. The client cannot know whether the broker has received the
//! request, so librdkafka repeats the request (`rd_kafka_buf_handle_op`, for `_TRANSPORT` and `_TIMED_OUT`).

use super::faults::{Api, RequestFault};
use super::{ClientId, Micros, World, micros, millis};
use super::{Simulation, TIMEOUT};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(super) type NodeId = usize;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// The connection broke. The broker may or may not have served the request.
    Transport,
    TimedOut,
    NotLeader,
    NotCoordinator,
    CoordinatorLoading,
    NotEnoughReplicas,
    ConcurrentTransactions,
    UnstableOffsetCommit,
    OffsetNotAvailable,
    UnknownTopic,
    TopicExists,
    OffsetOutOfRange,
    PolicyViolation,
    TooLarge,
    InvalidRecords(Vec<(usize, bool, String)>),
    OutOfOrderSequence,
    InvalidProducerEpoch,
    ProducerFenced,
    InvalidProducerIdMapping,
    InvalidTxnState,
    IllegalGeneration,
    UnknownMember,
    FencedInstance,
    RebalanceInProgress,
    InconsistentProtocol,
    OffsetMetadataTooLarge,
    InvalidCommitOffsetSize,
}

impl Code {
    pub(super) const fn is_retriable(&self) -> bool {
        use Code::{
            ConcurrentTransactions, CoordinatorLoading, NotCoordinator, NotEnoughReplicas, NotLeader, OffsetNotAvailable, TimedOut,
            Transport, UnknownTopic, UnstableOffsetCommit,
        };
        matches!(
            self,
            Transport
                | TimedOut
                | NotLeader
                | NotCoordinator
                | CoordinatorLoading
                | NotEnoughReplicas
                | ConcurrentTransactions
                | UnstableOffsetCommit
                | OffsetNotAvailable
                | UnknownTopic
        )
    }
}

/// All times are delays from now, except that the delay `Answered::answer` starts when the broker serves the request.
enum Outcome {
    Broken { broken: Micros, served: Option<Micros> },
    Answered { served: Micros, answer: Micros },
    Refused { answer: Micros, code: Code },
}

/// Returns a transient error that a broker may return instead of serving the request.
const fn passing_error(api: Api) -> Code {
    match api {
        Api::Fetch | Api::ListOffsets | Api::DeleteRecords => Code::NotLeader,
        Api::Produce => Code::NotEnoughReplicas,
        Api::Metadata => Code::TimedOut,
        Api::JoinGroup
        | Api::SyncGroup
        | Api::Heartbeat
        | Api::LeaveGroup
        | Api::OffsetFetch
        | Api::OffsetCommit
        | Api::TxnOffsetCommit => Code::NotCoordinator,
        Api::InitProducerId | Api::AddPartitionsToTxn | Api::AddOffsetsToTxn | Api::EndTxn => Code::CoordinatorLoading,
    }
}

impl World {
    pub(super) fn latency(&mut self, node: NodeId) -> Micros {
        let (least, most) = self.options.latency;
        let slow = self.cluster.nodes[node].slow_until > self.now;
        self.random.between(least, most) * if slow { 200 } else { 1 }
    }

    /// The remaining time until a client's process can reach a broker again. `None` if the process can reach the broker now.
    pub(super) fn cut_off_for(&self, client: ClientId, node: NodeId) -> Option<Micros> {
        let process = self.clients.get(&client)?.process();
        self.processes[process].cut_off.get(&node)?.checked_sub(self.now).filter(|&time| time > 0)
    }

    /// A client's timeout for an answer (`message.timeout.ms` for records, otherwise `socket.timeout.ms`).
    fn answer_timeout(&mut self, client: ClientId, api: Api) -> Micros {
        let of_records = self.producer(client).map(|producer| producer.timeout).filter(|_| api == Api::Produce);
        of_records.unwrap_or_else(|| micros(TIMEOUT))
    }

    fn outcome(&mut self, client: ClientId, api: Api, node: NodeId) -> Outcome {
        let to = self.latency(node);
        let back = self.latency(node);
        if let Some(time) = self.cut_off_for(client, node) {
            // TCP retransmits the request at increasing intervals, even after the client has closed the connection. So the request can
            // arrive some time after the process can reach the broker again.
            let served = time + self.random.below(time / 2 + 1) + to;
            let broken = self.answer_timeout(client, api);
            if served + back < broken {
                return Outcome::Answered { served, answer: back };
            }
            let arrives = self.faults.late_apis.contains(&api) && self.random.chance(5000);
            return Outcome::Broken { broken, served: arrives.then_some(served) };
        }
        if self.cluster.is_down(node, self.now) {
            // The broker's machine either refuses connections or does not respond at all.
            let refused = self.random.chance(5000);
            return Outcome::Broken { broken: if refused { to + back } else { millis(1000) }, served: None };
        }
        if let Some(at) = self.request_faults.iter().position(|&(of, _)| of == api) {
            let (_, fault) = self.request_faults.remove(at);
            let broken = to + back;
            return match fault {
                RequestFault::LostRequest => Outcome::Broken { broken, served: None },
                RequestFault::LostAnswer => Outcome::Broken { broken, served: Some(to) },
                RequestFault::Late(time) => Outcome::Broken { broken, served: Some(micros(time)) },
                RequestFault::Refused => Outcome::Refused { answer: broken, code: passing_error(api) },
            };
        }
        let faults = self.faults.clone();
        let broken = to + if self.random.chance(8000) { millis(self.random.below(200)) } else { millis(self.random.below(9_000)) };
        if self.random.chance(faults.lost_request) {
            self.trace("request lost", node, 0);
            return Outcome::Broken { broken, served: None };
        }
        if self.random.chance(faults.lost_answer) {
            self.trace("answer lost", node, 0);
            return Outcome::Broken { broken: to + broken, served: Some(to) };
        }
        if self.random.chance(faults.late_request) && faults.late_apis.contains(&api) {
            let late = to + self.random.between(millis(100), micros(faults.late_by));
            self.trace("request late", node, late);
            return Outcome::Broken { broken: broken.min(late), served: Some(late) };
        }
        if self.random.chance(faults.retriable_error) {
            return Outcome::Refused { answer: to + back, code: passing_error(api) };
        }
        let slow = if self.random.chance(faults.slow_answer) { self.random.below(micros(faults.slow_by)) } else { 0 };
        Outcome::Answered { served: to, answer: back + slow }
    }

    /// Sends a request to a broker. `serve` runs in the broker. `answered` runs in the client with the answer or an error, if the client
    /// still exists.
    pub(super) fn request<T: Send + 'static>(
        &mut self,
        client: ClientId,
        (api, node): (Api, NodeId),
        serve: impl FnOnce(&mut Self) -> Result<T, Code> + Send + 'static,
        answered: impl FnOnce(&mut Self, Result<T, Code>) + Send + 'static,
    ) {
        match self.outcome(client, api, node) {
            Outcome::Refused { answer, code } => self.inside_after(answer, client, move |world| answered(world, Err(code))),
            Outcome::Broken { broken, served } => {
                if let Some(served) = served {
                    self.after(served, move |world| {
                        if !world.cluster.is_down(node, world.now) {
                            world.trace(api.name(), client, node);
                            // The client's connection is gone, so the answer is lost.
                            drop(serve(world));
                        }
                    });
                }
                self.inside_after(broken, client, move |world| answered(world, Err(Code::Transport)));
            }
            Outcome::Answered { served, answer } => self.after(served, move |world| {
                if world.cluster.is_down(node, world.now) {
                    world.inside_after(answer, client, move |world| answered(world, Err(Code::Transport)));
                    return;
                }
                world.trace(api.name(), client, node);
                world.answer_after = 0;
                let result = serve(world);
                let answer = world.answer_after.saturating_sub(world.now) + answer;
                let broken = world.answer_timeout(client, api);
                match world.cut_off_for(client, node).map(|time| time + answer) {
                    Some(late) if late >= broken => world.inside_after(broken, client, move |world| answered(world, Err(Code::Transport))),
                    late => world.inside_after(late.unwrap_or(answer), client, move |world| answered(world, result)),
                }
            }),
        }
    }

    /// Delivers an answer to a client after the latency. If the client's process is cut off from the broker, the answer arrives only after
    /// the process can reach the broker again.
    pub(super) fn answer_later(&mut self, client: ClientId, node: NodeId, answered: impl FnOnce(&mut Self) + Send + 'static) {
        let delay = self.latency(node) + self.cut_off_for(client, node).unwrap_or(0);
        self.inside_after(delay, client, answered);
    }
}

impl Simulation {
    /// Sends a request and waits for the answer. Retries after retriable errors until `timeout` has passed.
    pub(super) fn call<T: Send + 'static>(
        &self,
        client: ClientId,
        api: Api,
        timeout: Duration,
        node: impl Fn(&World) -> NodeId,
        serve: impl Fn(&mut World) -> Result<T, Code> + Clone + Send + 'static,
    ) -> Result<T, Code> {
        let Some(mut world) = self.enter() else { return Err(Code::Transport) };
        let deadline = world.now.saturating_add(micros(timeout));
        let mut last = Code::TimedOut;
        loop {
            let answer = Arc::new(Mutex::new(None));
            let (slot, serve) = (Arc::clone(&answer), serve.clone());
            let Some(signal) = world.signal_of(client) else { return Err(Code::Transport) };
            let to = node(&world);
            world.request(client, (api, to), serve, move |world, result| {
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                world.notify(signal);
            });
            let is_answered = || answer.lock().unwrap_or_else(PoisonError::into_inner).take();
            let mut answer = None;
            (world, _) = self.wait_until(world, Some(deadline), signal, &mut |_| {
                answer = is_answered();
                answer.is_some()
            });
            match answer {
                None => return Err(last),
                Some(Err(code)) if code.is_retriable() => {
                    // The broker may still serve this request after the retry. `kafka::ffi::producer` detects such late requests, too.
                    if api == Api::TxnOffsetCommit
                        && matches!(code, Code::Transport | Code::TimedOut)
                        && let Some(producer) = world.producer(client)
                    {
                        producer.has_late_request = true;
                    }
                    last = code;
                }
                Some(result) => return result,
            }
            let backoff = millis(world.random.between(20, 200));
            if world.now + backoff >= deadline {
                // librdkafka, too, returns the last error only after the timeout has passed.
                drop(self.block(world, Some(deadline), None));
                return Err(last);
            }
            let until = world.now + backoff;
            world = self.block(world, Some(until), None);
        }
    }
}

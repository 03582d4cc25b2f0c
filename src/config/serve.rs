//! The servers of `unseen serve`.
//!
//! Errors and `Debug` output never show the password.

use super::error::{Diagnostics, integer};
use super::filter::{self, Filter};
use super::listen::listen;
use super::units::Length;
use super::{Partitioner, Topic, raw};
use crate::filter::{AtMaxMemory, Kind, Size, Window};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// The servers of `unseen serve`. Its `Debug` output contains no secret.
#[derive(Clone)]
pub struct Serve {
    /// True if the configuration has a table `[serve]`.
    pub is_set: bool,
    /// The address for Redis clients.
    pub listen: SocketAddr,
    /// The HTTP address for metrics, probes, and lookups, or `None` if it is off.
    pub http_listen: Option<SocketAddr>,
    /// Number of threads. The number of CPUs by default.
    pub threads: Option<u16>,
    /// Maximum number of connections.
    pub max_connections: usize,
    /// The password that clients must send with AUTH, if any.
    pub password: Option<String>,
    /// The TLS files. Without them, connections are not encrypted.
    pub tls: Option<Tls>,
    /// The partitions to follow. All partitions by default.
    pub partitions: Option<Partitions>,
    /// The producers' partitioner, if it is configured.
    pub partitioner: Option<Partitioner>,
    /// True if clients can write to input topics.
    pub writes: bool,
    /// Maximum age of the server's state. With an older state, the server returns errors. No limit by default.
    pub max_staleness: Option<Duration>,
    /// Filters that differ from the worker's filters, by space.
    pub filters: BTreeMap<String, Filter>,
}

impl fmt::Debug for Serve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            is_set,
            listen,
            http_listen,
            threads,
            max_connections,
            password: _,
            tls,
            partitions,
            partitioner,
            writes,
            max_staleness,
            filters,
        } = self;
        f.debug_struct("Serve")
            .field("is_set", is_set)
            .field("listen", listen)
            .field("http_listen", http_listen)
            .field("threads", threads)
            .field("max_connections", max_connections)
            .field("tls", tls)
            .field("partitions", partitions)
            .field("partitioner", partitioner)
            .field("writes", writes)
            .field("max_staleness", max_staleness)
            .field("filters", filters)
            .finish_non_exhaustive()
    }
}

impl Serve {
    /// Returns a warning if clients on other machines can write without a password or a certificate.
    #[must_use]
    pub fn open_writes(&self) -> Option<String> {
        let wants_certificates = self.tls.as_ref().is_some_and(|tls| tls.client_ca_location.is_some());
        let is_open = self.writes && self.password.is_none() && !wants_certificates && !self.listen.ip().is_loopback();
        is_open.then(|| {
            format!(
                "serve.writes: any client that can connect to {} can write to the input topics; set serve.password, or require client certificates with serve.tls.client_ca_location",
                self.listen
            )
        })
    }
}

/// The PEM files for TLS. The server reads them again once a minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The server's certificate, followed by any intermediate certificates.
    pub certificate_location: PathBuf,
    /// The private key of the server's certificate.
    pub key_location: PathBuf,
    /// CA certificates that sign the certificates of clients. Without them, clients do not need a certificate.
    pub client_ca_location: Option<PathBuf>,
}

/// A set of partition numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partitions(Vec<RangeInclusive<i32>>);

impl Partitions {
    /// True if the set contains a partition.
    #[must_use]
    pub fn contains(&self, partition: i32) -> bool {
        self.0.iter().any(|range| range.contains(&partition))
    }

    /// Parses `0-31`, `7`, or several ranges and numbers separated by commas.
    fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| text.trim().parse::<i32>().ok().filter(|&number| number >= 0);
        let range = |part: &str| match part.split_once('-') {
            Some((first, last)) => Some(number(first)?..=number(last)?).filter(|range| !range.is_empty()),
            None => number(part).map(|number| number..=number),
        };
        text.split(',').map(range).collect::<Option<_>>().map(Self)
    }
}

pub(super) fn resolve(raw: raw::Serve, topics: &[Topic], diagnostics: &mut Diagnostics) -> Option<Serve> {
    let address = match listen(&raw.listen, "serve.listen", "127.0.0.1:6379", diagnostics) {
        Ok(None) => {
            diagnostics.add("serve.listen", "must be an address, because `unseen serve` cannot run without this server");
            None
        }
        address => address.ok().flatten(),
    };
    let http_listen = listen(&raw.http_listen, "serve.http_listen", "127.0.0.1:8082", diagnostics);
    if let Some(threads) = &raw.threads {
        integer(threads.0, &(1..=256), "serve.threads", diagnostics);
    }
    integer(raw.max_connections.0, &(1..=1_000_000), "serve.max_connections", diagnostics);
    if raw.password.as_ref().is_some_and(String::is_empty) {
        diagnostics.add("serve.password", "must not be empty; to allow clients without a password, remove it");
    }
    let tls = raw.tls.and_then(|raw| tls(raw, diagnostics));
    let partitions = raw.partitions.and_then(|text| {
        let partitions = Partitions::parse(&text);
        if partitions.is_none() {
            diagnostics.add("serve.partitions", format!("expected partition numbers, such as \"0-31\" or \"0,2,4\", got {text:?}"));
        }
        partitions
    });
    if raw.max_staleness.as_ref().is_some_and(|most| most.0 < Duration::from_secs(2)) {
        diagnostics
            .add("serve.max_staleness", "expected a duration of at least 2s, because the server contacts the brokers once per second");
    }
    let filters = raw.filters.iter().filter_map(|(space, raw)| Some((space.clone(), own_filter(space, raw, topics, diagnostics)?)));
    let filters = filters.collect();
    Some(Serve {
        is_set: raw.is_set,
        listen: address?,
        http_listen: http_listen.ok()?,
        threads: raw.threads.and_then(|threads| u16::try_from(threads.0).ok()),
        max_connections: usize::try_from(raw.max_connections.0).ok()?,
        password: raw.password,
        tls,
        partitions,
        partitioner: raw.partitioner,
        writes: raw.writes.0,
        max_staleness: raw.max_staleness.map(|most| most.0),
        filters,
    })
}

/// Resolves the TLS files without reading them, because a worker with the same configuration may not have them.
fn tls(raw: raw::Tls, diagnostics: &mut Diagnostics) -> Option<Tls> {
    let mut required = |location: Option<String>, name: &str, what: &str| {
        if location.is_none() {
            diagnostics.add(&format!("serve.tls.{name}"), format!("required: the PEM file with the server's {what}"));
        }
        location.map(PathBuf::from)
    };
    let certificate_location = required(raw.certificate_location, "certificate_location", "certificate");
    let key_location = required(raw.key_location, "key_location", "private key");
    Some(Tls {
        certificate_location: certificate_location?,
        key_location: key_location?,
        client_ca_location: raw.client_ca_location.map(PathBuf::from),
    })
}

fn own_filter(space: &str, raw: &raw::Filter, topics: &[Topic], diagnostics: &mut Diagnostics) -> Option<Filter> {
    let path = format!("serve.filters.{space}");
    let of_space = || topics.iter().filter(|topic| topic.space == space);
    let Some(topic) = of_space().next() else {
        if !diagnostics.knows("topics") {
            let spaces: Vec<_> = topics.iter().map(|topic| &topic.space).collect();
            diagnostics.add(&path, format!("no topic has the space {space:?}; the spaces are {spaces:?}"));
        }
        return None;
    };
    let length = match topic.window {
        Window::Time { .. } => topic.window.length_ms().map(|ms| Length::Time(Duration::from_millis(ms.unsigned_abs()))),
        Window::Keys { slice_keys, slices } => Some(Length::Keys(slice_keys.saturating_mul(slices.into()))),
    };
    let filter = filter::resolve(raw, length, Some(topic.window), &path, diagnostics);
    let in_memory = Kind::list('"', |kind| kind.keeps_window && kind.size != Size::Disk);
    if topic.on_change.is_some() {
        diagnostics.add(&path, "remove it: `unseen serve` does not follow a space with emit = \"on_change\"");
    } else if filter.is_exact() {
        diagnostics.add(
            &path,
            format!(
                "kind {} and confirm store keys on disk, but a server stores all keys in memory; use kind {in_memory} without confirm",
                Kind::list('"', |kind| kind.size == Size::Disk)
            ),
        );
    } else if !filter.kind.properties().keeps_window && topic.filter.kind.properties().keeps_window {
        let name = filter.kind.name();
        diagnostics.add(
            &path,
            format!("kind {name:?} forgets keys at random, so the server would report seen keys as unseen; use kind {in_memory}"),
        );
    } else if filter.growth.at_max == AtMaxMemory::EvictOldest && topic.filter.growth.at_max != AtMaxMemory::EvictOldest {
        diagnostics
            .add(&format!("{path}.at_max_memory"), "\"evict_oldest\" forgets keys that the worker still has; use \"stop\" or \"saturate\"");
    } else if of_space().any(|topic| topic.retract.is_some()) && !filter.can_retract() {
        diagnostics.add(
            &path,
            format!(
                "kind {:?} cannot retract keys, but topics of the space {space:?} do; use kind {}",
                filter.kind.name(),
                Kind::list('"', |kind| kind.can_retract && kind.size != Size::Disk)
            ),
        );
    }
    let slices = u64::from(topic.window.slices());
    if raw.slices.0 != slices && raw.slices.0 != raw::Filter::default().slices.0 {
        diagnostics.add(&format!("{path}.slices"), format!("must be {slices}, like the worker's filter; set it to {slices}, or remove it"));
    }
    Some(filter)
}

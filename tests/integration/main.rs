//! Tests of the real binary on a real Kafka. See `harness` for where that comes from.

mod harness;
mod harness_smoke;
mod inspect;
mod stream;

mod allocations;
mod beginnings;
mod broker_restart;
mod changelog;
mod chaos;
mod count_windows;
mod dashboard;
mod drain;
mod faults;
mod invalid;
mod kills;
mod members;
mod memories;
mod observed;
mod offsets;
mod output_deleted;
mod oversize;
mod panics;
mod rebuild;
mod rebuild_threads;
mod repartition;
mod replay;
mod routes;
mod security;
mod spans;
mod state;
mod times;
mod tombstones;
mod topology;
mod undisturbed;
mod zombie;

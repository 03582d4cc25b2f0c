//! Where a partition's log ends, by what librdkafka was told with the records it fetched.
//!
//! Owns one call that the bindings have and the wrapper has not. Must never ask a broker: it is called once a second
//! for every partition.
#![expect(unsafe_code, reason = "the one call below")]

use crate::record::{Offset, TopicPartition};
use rdkafka::bindings::{rd_kafka_get_watermark_offsets, rd_kafka_resp_err_t};
use rdkafka::client::{Client, ClientContext};
use std::ffi::CString;

/// The offset after the last record that a reader of committed records may have; `None` before anything was fetched.
pub(super) fn end<C: ClientContext>(client: &Client<C>, partition: &TopicPartition) -> Option<Offset> {
    let topic = CString::new(partition.topic.as_bytes()).ok()?;
    let (mut low, mut high) = (-1, -1);
    // SAFETY: the client's handle lives as long as `client` is borrowed; the topic is a C string, and it and both
    // numbers outlive the call, which keeps none of them.
    let error =
        unsafe { rd_kafka_get_watermark_offsets(client.native_ptr(), topic.as_ptr(), partition.partition, &raw mut low, &raw mut high) };
    (error == rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR && high >= 0).then_some(high)
}

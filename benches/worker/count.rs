//! Counts the output after each run, because a fast worker that loses records is useless.

use crate::broker::Broker;
use crate::input::{self, Input};
use crate::records::Stream;
use rdkafka::topic_partition_list::Offset;

pub struct Count {
    pub records: usize,
    pub ids: usize,
}

impl Count {
    /// Reads the whole output topic and counts its records and its distinct ids. The input has `ids` distinct ids.
    pub fn of(broker: &Broker, topic: &str, stream: &Stream, ids: usize) -> Self {
        let mut input = Input::open(&broker.address, topic, stream.partitions, Offset::Beginning, &broker.new_name("count"), true);
        let mut seen = vec![0_u64; ids.div_ceil(64)];
        let (mut count, mut open) = (Self { records: 0, ids: 0 }, stream.partitions);
        while open > 0 {
            for message in input.take().iter() {
                if input::is_end(message) {
                    open -= 1;
                    continue;
                }
                count.records += 1;
                let id = stream.id_of(input::key(message)).filter(|&id| id < ids).expect("every output record has an id of the input");
                let (word, bit) = (&mut seen[id / 64], 1 << (id % 64));
                count.ids += usize::from(*word & bit == 0);
                *word |= bit;
            }
        }
        count
    }
}

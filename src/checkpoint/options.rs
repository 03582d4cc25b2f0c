//! The options of RocksDB.
//!
//! Limits the memory, files, and threads of RocksDB. Does not sync each write, because an older checkpoint is enough after a power failure
//! (see the documentation of `checkpoint`).

use super::draft;
use rocksdb::{Cache, DBCompressionType, Options};

/// Size of a write buffer. At most two write buffers are in memory.
const WRITE_BUFFER_BYTES: usize = 32 << 20;
/// Size of the block cache, which fingerprint lookups use.
const BLOCK_CACHE_BYTES: usize = 64 << 20;

pub(super) fn options() -> Options {
    let mut options = Options::default();
    let mut tables = draft::tables();
    tables.set_block_cache(&Cache::new_lru_cache(BLOCK_CACHE_BYTES));
    options.set_block_based_table_factory(&tables);
    options.create_if_missing(true);
    options.set_paranoid_checks(true);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_write_buffer_size(WRITE_BUFFER_BYTES);
    options.set_max_write_buffer_number(2);
    options.set_max_total_wal_size(4 * WRITE_BUFFER_BYTES as u64);
    options.set_max_background_jobs(2);
    options.set_max_open_files(256);
    options.set_bytes_per_sync(1 << 20);
    options.set_wal_bytes_per_sync(1 << 20);
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(1 << 20);
    options
}

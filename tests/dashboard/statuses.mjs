// Statuses that are hard to produce with a real worker.

const histogram = { buckets: [], count: 0, sum_seconds: 0 };

/** A worker that has just started and has no figures yet. */
export const empty = {
  version: '0.1.0', instance: 'news-0', group_id: 'unseen', delivery: 'exactly_once', workers: 2,
  state: 'connecting', reason: 'No broker has answered yet.', time_ms: 1_763_750_000_400, started_ms: 1_763_750_000_000,
  topics: [],
  end_to_end_latency: histogram, transaction_duration: histogram, checkpoint_duration: histogram, restore_duration: histogram,
  transactions: { committed: 0, aborted: 0 }, rebalances: 0,
  left_out: [], spaces: [], partitions: [],
  checkpoints: { written: 0, failures: 0, last_success_ms: null, last_bytes: null },
  rebuilds: { running: 0, done: 0, keys: 0 },
  process: { resident_bytes: 50_331_648, cpu_seconds: 0.02, state_disk_available_bytes: null, state_disk_size_bytes: null },
  events: [],
};

const after = (of, at) => ({ ...empty, state: 'running', reason: null, time_ms: empty.time_ms + at, ...of });
const judged = (unseen, duplicate) => [{
  topic: 'news.events', space: 'seen-news', shadow: false, records: { unseen, duplicate, late: 0, invalid: 0, retracted: 0, tombstone: 0, passed: 0 }, invalid: {}, consumed_bytes: 0, dead_letters: 0, future: 0, time_warning: null, content_warning: null, warmed_up: 0, values: [], key_conflicts: null,
}];
const waited = (tenth, fifth, count) => ({ buckets: [[0.1, tenth], [0.2, fifth]], count, sum_seconds: 1 });

/** Three statuses, 4 s apart, and the expected rates of the second and the third status. */
export const series = [
  after({ topics: judged(5000, 5000), end_to_end_latency: waited(500, 1000, 1000) }, 0),
  after({ topics: judged(5600, 5400), end_to_end_latency: waited(590, 1100, 1100) }, 4000),
  after({ topics: judged(5600, 5400), end_to_end_latency: waited(590, 1100, 1300) }, 8000),
];
export const said = [
  ['250/s', '150/s', '40.0 %', '190 ms'],
  ['0/s', '0/s', '–', 'over 200 ms'],
];

export const hostile = '<img src=x onerror="throw 1"><script>throw 2</script>';

const space = (name, kind, falsePositives, more = {}) => ({
  space: name, topics: ['news.events'], kind, confirm: false, window: '24h', window_seconds: 86_400, window_keys: null, slices: 4, partitions: 200,
  keys: 7_312_044, capacity_keys: 10_000_000, memory_bytes: 28_311_552, fill_ratio: 0.31, false_positives: falsePositives,
  rotations: 3, next_rotation_seconds: 4123.5, corrected: 0, evicted: 0, cross_partition_keys: 0, stream_time_ms: 1_763_749_999_000, ...more,
});
const observed = (rate, low, high, checked, wrong) => ({ rate, low, high, checked, wrong });

/** All states of a space's false-positive rates, and the extremes of fill and window. */
export const spaces = {
  above: space('above', 'aging', { target: 1e-4, estimated: 2e-5, observed: observed(9e-4, 6e-4, 1.3e-3, 40_000, 36) }),
  perhaps: space('perhaps', 'stable', { target: 1e-4, estimated: 2e-5, observed: observed(1.3e-4, 4e-5, 4e-4, 15_000, 2) }, { window: '1000000 keys', window_seconds: null, window_keys: 1_000_000, next_rotation_seconds: null }),
  estimated: space('estimated', 'aging', { target: 1e-4, estimated: 3e-4, observed: observed(0, 0, 9e-3, 400, 0) }, { fill_ratio: 1.7, evicted: 9, cross_partition_keys: 4 }),
  within: space('within', 'cuckoo', { target: 1e-4, estimated: 2e-5, observed: observed(3e-5, 1e-5, 6e-5, 200_000, 6) }),
  unchecked: space('unchecked', 'per_entity', { target: 1e-4, estimated: 0, observed: observed(0, 0, 1, 0, 0) }, { fill_ratio: 0, stream_time_ms: null }),
  confirmed: space('confirmed', 'exact', { target: null, estimated: 0, observed: null }, { confirm: true }),
};

/** The expected judgment of each space, and the name of its color. */
export const verdicts = {
  above: ['above target', 'bad'],
  perhaps: ['possibly above target', 'warn'],
  estimated: ['estimated above target', 'warn'],
  within: ['within target', 'good'],
  unchecked: ['nothing checked yet', null],
  confirmed: ['every drop confirmed', 'good'],
};

const records = { unseen: 818_070, duplicate: 818_530, late: 3, invalid: 7, retracted: 0, tombstone: 0, passed: 0 };
const values = [...[hostile, 'a', 'b', 'c', 'd', 'e'].map((value, index) => ({ value, records: 90_000 - index, duplicates: 1000 + index })), { value: null, records: 5, duplicates: 0 }];
const topic = (name) => ({ topic: name, space: 'within', shadow: name === 'news.events', records, invalid: { no_key: 5, not_json: 2 }, consumed_bytes: 511_000_000, dead_letters: 7, future: 1, time_warning: name === hostile ? `Times look like microseconds: ${hostile}` : null, content_warning: name === hostile ? `No content: ${hostile}` : null, warmed_up: 0, values, key_conflicts: null });

/** A large worker with long and malicious names: hundreds of partitions, all events, each kind of space. */
export const large = {
  ...empty, state: 'draining', reason: `The process was told to end: ${hostile}`, time_ms: 1_763_760_000_000, instance: `news-${'0123456789'.repeat(6)}`,
  topics: [topic('news.events'), topic(hostile), topic('a'.repeat(249))],
  left_out: [{ topic: hostile, reason: 'its output does not exist' }, { topic: 'b', reason: 'no permission' }],
  spaces: [...Object.values(spaces), space(hostile, hostile, spaces.within.false_positives)],
  partitions: Array.from({ length: 400 }, (_, index) => ({
    topic: index % 40 === 0 ? 'a'.repeat(249) : 'news.events', partition: index, space: 'within', worker: index % 2,
    state: ['running', 'rebuilding', 'warming_up'][Math.max(0, index - 397)],
    position: 9_007_199_254_740_991 - index, committed: 88_000_000 + index, end: 88_000_000 + index + ((index * 7919) % 400), lag: index === 5 ? null : (index * 7919) % 400, stream_time_ms: null,
  })),
  events: Array.from({ length: 100 }, (_, index) => ({
    time_ms: 1_763_750_000_000 + index * 1000, level: ['info', 'warn', 'error'][index % 3], message: index % 2 ? hostile : 'b'.repeat(300),
  })),
};

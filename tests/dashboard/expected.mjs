// The figures that the dashboard must show for its statuses, computed without the dashboard's code.

const total = (numbers) => numbers.reduce((a, b) => a + b, 0);
const peak = (numbers) => numbers.filter((number) => number !== null).reduce((a, b) => (a === null || b > a ? b : a), null);

/** The quantile of the values that a histogram gained between `old` and `now`. */
function quantile(share, old, now) {
  const gained = old ? now.count - old.count : 0;
  if (gained <= 0) return null;
  const upTo = now.buckets.map(([bound, cumulative], index) => [bound, cumulative - (old.buckets[index]?.[1] ?? 0)]);
  const index = upTo.findIndex(([, cumulative]) => cumulative > 0 && cumulative >= share * gained);
  if (index < 0) return upTo.at(-1)?.[0] ?? 0;
  const [low, below] = index > 0 ? upTo[index - 1] : [0, 0];
  const [high, cumulative] = upTo[index];
  return low + ((high - low) * (share * gained - below)) / (cumulative - below);
}

/** The figures that change from poll to poll, at the status `statuses[at]`. */
function moving(statuses, at) {
  const now = statuses[at];
  const before = statuses.slice(0, at);
  const since = (ms) => before.find((old) => old.time_ms >= now.time_ms - ms) ?? before.at(-1);
  const records = (status, kinds) => total(status.topics.map((topic) => total(kinds.map((kind) => topic.records[kind]))));
  const gained = (of) => {
    const old = since(5_000);
    return old && now.time_ms > old.time_ms && of(now) >= of(old) ? [of(now) - of(old), (now.time_ms - old.time_ms) / 1000] : null;
  };
  const perSecond = (of) => gained(of) && gained(of)[0] / gained(of)[1];
  const all = (status) => records(status, ['unseen', 'duplicate', 'late', 'invalid', 'retracted', 'tombstone', 'passed']);
  const lags = now.partitions.map(({ lag }) => lag).filter((lag) => lag !== null);
  const minute = since(60_000);
  return {
    records_per_second: perSecond(all),
    unseen_per_second: perSecond((status) => records(status, ['unseen'])),
    duplicate_ratio: gained(all)?.[0] ? gained((status) => records(status, ['duplicate']))[0] / gained(all)[0] : null,
    lag: lags.length ? total(lags) : null,
    lag_unknown: now.partitions.length - lags.length,
    latency_p99_seconds: quantile(0.99, minute?.end_to_end_latency, now.end_to_end_latency),
    latency_median_seconds: quantile(0.5, minute?.end_to_end_latency, now.end_to_end_latency),
    transaction_p99_seconds: quantile(0.99, minute?.transaction_duration, now.transaction_duration),
    cpu_cores: perSecond((status) => status.process.cpu_seconds),
  };
}

function verdict({ target, estimated, observed }) {
  if (!observed) return 'confirmed';
  const { rate, low } = observed.checked ? observed : { rate: 0, low: 0 };
  if (low > target) return 'above';
  if (rate > target) return 'perhaps';
  if (estimated > target) return 'estimated';
  return observed.checked ? 'within' : 'unchecked';
}

const pick = (object, paths) => paths.map((path) => [path, path.split('.').reduce((value, name) => value?.[name] ?? null, object)]);

/** All figures by field that the page must show after the last of these statuses. */
export function expected(got) {
  const now = got.at(-1);
  const statuses = got.filter(({ started_ms, time_ms }) => started_ms === now.started_ms && time_ms > now.time_ms - 300_000);
  const moved = statuses.map((_, at) => moving(statuses, at));
  const dead = ({ topics }) => total(topics.map((topic) => topic.dead_letters));
  const { last_success_ms: success } = now.checkpoints;
  const { count, sum_seconds: sum } = now.checkpoint_duration;
  const fields = new Map(pick(now, ['version', 'instance', 'group_id', 'delivery', 'workers', 'state', 'reason', 'time_ms', 'rebalances',
    'transactions.committed', 'transactions.aborted', 'checkpoints.written', 'checkpoints.failures', 'checkpoints.last_bytes',
    'rebuilds.running', 'rebuilds.done', 'rebuilds.keys', 'process.resident_bytes', 'process.cpu_seconds',
    'process.state_disk_available_bytes', 'process.state_disk_size_bytes']));
  const derived = {
    ...moved.at(-1),
    uptime_seconds: (now.time_ms - now.started_ms) / 1000,
    dead_letters: dead(now),
    dead_letters_recent: dead(now) - dead(statuses[0]),
    checkpoint_age_seconds: success === null ? null : Math.max(0, (now.time_ms - success) / 1000),
    checkpoint_mean_seconds: count ? sum / count : null,
    partitions: now.partitions.length,
  };
  for (const [name, value] of Object.entries(derived)) fields.set(`derived.${name}`, value);
  for (const name of ['records_per_second', 'unseen_per_second', 'duplicate_ratio', 'lag']) {
    fields.set(`derived.peaks.${name}`, peak(moved.map(({ [name]: value }) => value)));
  }
  const each = (prefix, item, paths) => pick(item, paths).forEach(([path, value]) => fields.set(`${prefix}.${path}`, value));
  for (const space of now.spaces) {
    const prefix = `spaces.${space.space}`;
    each(prefix, space, ['space', 'kind', 'window', 'slices', 'partitions', 'keys', 'capacity_keys', 'memory_bytes', 'fill_ratio', 'rotations',
      'next_rotation_seconds', 'corrected', 'evicted', 'cross_partition_keys', 'stream_time_ms', 'false_positives.target', 'false_positives.estimated',
      ...['rate', 'low', 'high', 'checked', 'wrong'].map((name) => `false_positives.observed.${name}`)]);
    fields.set(`${prefix}.derived.verdict`, verdict(space.false_positives));
    fields.set(`${prefix}.derived.topics`, space.topics.join(', '));
  }
  for (const partition of now.partitions) {
    each(`partitions.${partition.topic}.${partition.partition}`, partition, ['topic', 'partition', 'state', 'lag', 'position', 'committed', 'end']);
  }
  for (const topic of now.topics) {
    const kinds = ['unseen', 'duplicate', 'late', 'invalid', 'retracted', 'tombstone', 'passed'].map((kind) => `records.${kind}`);
    each(`topics.${topic.topic}`, topic, ['topic', 'space', ...kinds, 'dead_letters', 'future', 'warmed_up', 'consumed_bytes',
      ...Object.keys(topic.invalid).map((reason) => `invalid.${reason}`), ...worst(topic.values)]);
  }
  now.events.forEach((event, index) => each(`events.${index}`, event, ['time_ms', 'level', 'message']));
  return fields;
}

/** The paths of the five values with the most duplicates. */
function worst(values) {
  const named = values.map((counted, index) => ({ ...counted, index })).filter(({ value }) => value !== null);
  return named.sort((a, b) => b.duplicates - a.duplicates).slice(0, 5)
    .flatMap(({ index }) => [`values.${index}.duplicates`, `values.${index}.records`]);
}

const UNITS = { '': 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40,
  '%': 0.01, ms: 1e-3, s: 1, min: 60, h: 3600, d: 86_400 };

/** True if a text such as 12.3k, 4 GiB, or 3 h 12 min is the rounded value. */
export function agrees(text, value) {
  const clean = text.replaceAll('\u2009', '').replace('−', '-').replace(/ ago$/, '');
  const parts = [...clean.matchAll(/(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)\s*([a-zA-Z%]*)/g)];
  if (!parts.length || parts.some(([, , unit]) => !(unit in UNITS))) return false;
  const said = total(parts.map(([, number, unit]) => Number(number) * UNITS[unit]));
  const step = text.endsWith(' ago') ? 0.5 : 0.05;
  return Math.abs(said - value) <= Math.max(0.05 * Math.abs(value), step * UNITS[parts[0][2]]);
}

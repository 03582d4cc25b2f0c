// The dashboard: polls api/v1/status and shows the result. index.html has the markup and most texts.
// Names in a status are untrusted, so text is only set by textContent.

// Browsers fire a timer of more than 2^31 ms immediately, so the interval has a limit.
const POLL_MS = Math.min(3_600_000, Math.max(100, Number(new URLSearchParams(location.search).get('poll')) || 2000));
const TIMEOUT_MS = Math.max(5000, POLL_MS);
// Limits of the history: by time for the curves, and by number for pages that poll fast.
const HISTORY_MS = 5 * 60_000;
const HISTORY_MOST = 600;
// Rates cover several polls, because workers process and commit records in batches.
const RATE_MS = 5_000;
const LATENCY_MS = 60_000;
const ROWS = { partitions: [12, 1000], events: [12, 100] };
const ROWS_OF_VALUES = 5;

const byId = (id) => document.getElementById(id);

// ---- Formatting ----

const NOTHING = '–';

const digits = (value) => (value >= 100 ? 0 : value >= 10 ? 1 : 2);

/** Formats a value with three digits and a unit: `[[1e6, 'M'], [1e3, 'k']]` formats 12300 as 12.3k. */
function scaled(value, units, gap) {
  const [size, unit] = units.find(([size]) => value >= size * 0.9995) ?? units.at(-1);
  return `${Number((value / size).toFixed(digits(value / size)))}${gap}${unit}`;
}

const grouped = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, '\u2009');

function count(value) {
  if (value < 10) return String(Number(value.toFixed(1)));
  if (value < 9999.5) return grouped(Math.round(value));
  return scaled(value, [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']], '');
}

function bytes(value) {
  return scaled(value, [[2 ** 40, 'TiB'], [2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB'], [1, 'B']], '\u00a0');
}

function duration(seconds) {
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds === 0) return '0\u00a0s';
  if (seconds < 0.9995) return `${Number((seconds * 1e3).toPrecision(3))}\u00a0ms`;
  if (seconds < 59.95) return `${Number(seconds.toFixed(seconds < 10 ? 2 : 1))}\u00a0s`;
  const parts = [['d', 86_400], ['h', 3600], ['min', 60], ['s', 1]];
  const first = parts.findIndex(([, size]) => Math.round(seconds) >= size);
  const [[unit, size], [next, step] = []] = parts.slice(first);
  const whole = Math.floor(Math.round(seconds) / size);
  const rest = Math.floor((Math.round(seconds) - whole * size) / step);
  return rest ? `${whole}\u00a0${unit} ${rest}\u00a0${next}` : `${whole}\u00a0${unit}`;
}

/** Formats a time. Omits the date if it is today. */
function time(ms) {
  const two = (number) => String(number).padStart(2, '0');
  const at = new Date(ms);
  const hour = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  if (at.toDateString() === new Date().toDateString()) return hour;
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${hour}`;
}

const percent = (value) => `${value === 0 || value === 1 ? value * 100 : (value * 100).toFixed(1)}\u00a0%`;
const rate = (value) => (value === 0 ? '0' : value >= 0.01 ? percent(value) : value.toExponential(1).replace('.0', ''));

const VERDICTS = {
  above: 'above target',
  perhaps: 'possibly above target',
  estimated: 'estimated above target',
  within: 'within target',
  unchecked: 'nothing checked yet',
  confirmed: 'every drop confirmed',
};

const formats = {
  text: (value) => String(value),
  words: (value) => String(value).replaceAll('_', ' '),
  number: (value) => value.toFixed(2),
  exact: grouped,
  count,
  bytes,
  duration,
  ago: (seconds) => `${duration(Math.round(seconds))} ago`,
  time,
  percent,
  rate,
  verdict: (value) => VERDICTS[value],
};

// ---- Values derived from several statuses or fields ----

let history = [];

const sum = (items, of) => items.reduce((total, item) => total + of(item), 0);

/** Returns the totals of a status, for comparison with later statuses. */
function sample(status) {
  const records = (kind) => sum(status.topics, (topic) => topic.records[kind] ?? 0);
  return {
    time_ms: status.time_ms,
    started_ms: status.started_ms,
    records: sum(status.topics, (topic) => sum(Object.values(topic.records), Number)),
    unseen: records('unseen'),
    duplicate: records('duplicate'),
    dead_letters: sum(status.topics, (topic) => topic.dead_letters),
    cpu_seconds: status.process.cpu_seconds,
    latency: status.end_to_end_latency,
    transactions: status.transaction_duration,
  };
}

/** Returns the oldest sample of the last `span` ms, or the newest earlier sample after a gap. */
function since(now, span) {
  return history.find((old) => old.time_ms >= now.time_ms - span) ?? history.at(-1);
}

/** Returns a quantile of the values added to a histogram between two statuses, interpolated within a bucket as in Prometheus. */
function quantile(share, histogram, old) {
  const total = histogram.count - (old?.count ?? 0);
  if (!old || total <= 0) return { value: null, over: false };
  const rank = share * total;
  let low = 0;
  let below = 0;
  for (const [index, [high, cumulative]] of histogram.buckets.entries()) {
    const upTo = cumulative - (old.buckets[index]?.[1] ?? 0);
    if (upTo >= rank && upTo > below) {
      return { value: low + ((high - low) * (rank - below)) / (upTo - below), over: false };
    }
    [low, below] = [high, upTo];
  }
  return { value: low, over: true };
}

function derive(status) {
  const now = sample(status);
  // A new process starts with new totals.
  if (history.length && history[0].started_ms !== now.started_ms) history = [];
  const recent = since(now, RATE_MS);
  const minute = since(now, LATENCY_MS);
  const seconds = recent ? (now.time_ms - recent.time_ms) / 1000 : 0;
  const gained = (of) => (seconds > 0 && now[of] !== null && now[of] >= recent[of] ? now[of] - recent[of] : null);
  const perSecond = (of) => (gained(of) === null ? null : gained(of) / seconds);
  const lags = status.partitions.map((partition) => partition.lag).filter((lag) => lag !== null);
  const p99 = quantile(0.99, now.latency, minute?.latency);
  const checkpoints = status.checkpoint_duration;
  Object.assign(now, {
    records_per_second: perSecond('records'),
    unseen_per_second: perSecond('unseen'),
    duplicate_ratio: gained('records') ? gained('duplicate') / gained('records') : null,
    lag: lags.length ? sum(lags, Number) : null,
    latency_p99_seconds: p99.value,
    dead_letters_per_second: perSecond('dead_letters'),
  });
  history = [...history, now].filter((old) => old.time_ms > now.time_ms - HISTORY_MS && old.time_ms <= now.time_ms).slice(-HISTORY_MOST);
  const peak = (of) => history.reduce((most, { [of]: value }) => (value !== null && (most === null || value > most) ? value : most), null);
  const success = status.checkpoints.last_success_ms;
  return {
    ...now,
    peaks: Object.fromEntries(['records_per_second', 'unseen_per_second', 'duplicate_ratio', 'lag'].map((of) => [of, peak(of)])),
    uptime_seconds: (status.time_ms - status.started_ms) / 1000,
    lag_unknown: status.partitions.length - lags.length,
    latency_over: p99.over,
    latency_median_seconds: quantile(0.5, now.latency, minute?.latency).value,
    dead_letters_recent: now.dead_letters - history[0].dead_letters,
    cpu_cores: perSecond('cpu_seconds'),
    transaction_p99_seconds: quantile(0.99, now.transactions, minute?.transactions).value,
    checkpoint_age_seconds: success === null ? null : Math.max(0, (status.time_ms - success) / 1000),
    checkpoint_mean_seconds: checkpoints.count ? checkpoints.sum_seconds / checkpoints.count : null,
    partitions: status.partitions.length,
  };
}

/** Compares the false-positive rate of a space with its target. */
function verdict({ target, estimated, observed }) {
  if (observed === null) return 'confirmed';
  if (observed.checked > 0 && observed.low > target) return 'above';
  if (observed.checked > 0 && observed.rate > target) return 'perhaps';
  if (estimated > target) return 'estimated';
  return observed.checked > 0 ? 'within' : 'unchecked';
}

// ---- Rendering ----

const lookup = (source, path) => path.split('.').reduce((value, name) => value?.[name] ?? null, source);

function write(element, value) {
  const { as, bad } = element.dataset;
  const exact = String(value);
  if (element.dataset.value === exact && as !== 'time') return;
  element.dataset.value = exact;
  const text = value === null ? NOTHING : formats[as](value);
  if (element.textContent !== text) element.textContent = text;
  if (bad !== undefined) element.classList.toggle('bad', value > 0);
  if (element.tagName === 'TIME') element.dateTime = new Date(value).toISOString();
  if (typeof value === 'number') element.title = as === 'time' ? new Date(value).toISOString() : exact;
  else element.removeAttribute('title');
}

/** Writes all figures of an item into its copy of a template. */
function fill(copy, item, name) {
  for (const element of copy.querySelectorAll('[data-path]')) {
    element.dataset.field = `${name}.${element.dataset.path}`;
    write(element, lookup(item, element.dataset.path));
  }
}

/** Keeps one copy of a template per item, in order. Existing copies are reused. */
function list(id, template, items, nameOf, update) {
  const parent = byId(id);
  const copies = new Map([...parent.children].map((copy) => [copy.dataset.name, copy]));
  items.forEach((item, index) => {
    const name = nameOf(item);
    const copy = copies.get(name) ?? byId(template).content.firstElementChild.cloneNode(true);
    copies.delete(name);
    copy.dataset.name = name;
    if (parent.children[index] !== copy) parent.insertBefore(copy, parent.children[index] ?? null);
    update(copy, item, name);
  });
  for (const copy of copies.values()) copy.remove();
  byId(`no-${id}`).hidden = items.length > 0;
}

const SVG = 'http://www.w3.org/2000/svg';

function draw(parent, tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

function meter(element, ratio, most = 1) {
  element.setAttribute('aria-valuemax', String(Math.max(100, Math.round(most * 100))));
  element.setAttribute('aria-valuenow', String(Math.round((ratio ?? 0) * 100)));
  element.firstElementChild.style.inlineSize = `${Math.min(1, ratio ?? 0) * 100}%`;
}

/** Draws the last five minutes of a tile. Unknown values leave a gap. */
function sparkline(tile) {
  const { series, most } = tile.dataset;
  const [width, height, pad] = [100, 30, 2];
  const end = history.at(-1).time_ms;
  const span = Math.max(POLL_MS * 20, Math.min(HISTORY_MS, end - history[0].time_ms));
  const top = Number(most) || Math.max(...history.map((point) => point[series] ?? 0)) * 1.1 || 1;
  const x = (point) => (width - pad - ((end - point.time_ms) / span) * (width - pad)).toFixed(2);
  const y = (point) => (height - pad - (point[series] / top) * (height - 2 * pad)).toFixed(2);
  const runs = [[]];
  for (const point of history) {
    if (point[series] === null) runs.push([]);
    else if (end - point.time_ms <= span) runs.at(-1).push(point);
  }
  const drawn = runs.filter((run) => run.length);
  const line = (run) => run.map((point) => `${x(point)},${y(point)}`).join('L');
  const area = (run) => `M${x(run[0])},${height}L${line(run)}L${x(run.at(-1))},${height}Z`;
  const last = history.at(-1);
  tile.querySelector('.area').setAttribute('d', drawn.map(area).join(''));
  tile.querySelector('.line').setAttribute('d', drawn.map((run) => `M${line(run)}`).join(''));
  tile.querySelector('.last').setAttribute('d', last[series] === null ? '' : `M${x(last)},${y(last)}h0`);
}

/** Draws target, estimate, and observed interval on a logarithmic axis. Values below the axis are drawn at its start. */
function ruler(svg, { target, estimated, observed }) {
  const seen = observed?.checked > 0 ? observed : null;
  const wanted = JSON.stringify([target, estimated, seen]);
  if (svg.dataset.drawn === wanted) return;
  svg.dataset.drawn = wanted;
  svg.replaceChildren();
  svg.classList.toggle('none', !(target > 0));
  if (!(target > 0)) return;
  const goal = Math.log10(target);
  const low = goal - 3;
  const high = Math.max(goal + 1, ...[estimated, seen?.high].filter((value) => value > 0).map((value) => Math.log10(value) + 0.2));
  const place = (value) => Math.min(1, Math.max(0, ((value > 0 ? Math.log10(value) : low) - low) / (high - low)));
  const at = (value) => `${(place(value) * 100).toFixed(2)}%`;
  const [axis, middle] = [38, 25];
  draw(svg, 'rect', { class: 'beyond', x: at(target), y: 12, width: `${((1 - place(target)) * 100).toFixed(2)}%`, height: axis - 12 });
  draw(svg, 'line', { class: 'axis', x1: 0, x2: '100%', y1: axis, y2: axis });
  for (let decade = Math.ceil(low - 1e-9); decade <= high + 1e-9; decade += 1) {
    const x = at(10 ** decade);
    const anchor = place(10 ** decade) < 0.04 ? 'start' : place(10 ** decade) > 0.96 ? 'end' : 'middle';
    draw(svg, 'line', { class: 'axis', x1: x, x2: x, y1: axis, y2: axis + 4 });
    draw(svg, 'text', { class: 'tick', x, y: axis + 16, 'text-anchor': anchor }, `1e${decade}`);
  }
  draw(svg, 'text', { class: 'tick', x: at(target), y: 8, 'text-anchor': 'middle' }, 'target');
  draw(svg, 'line', { class: 'goal', x1: at(target), x2: at(target), y1: 12, y2: axis });
  if (seen) {
    const width = `${((place(seen.high) - place(seen.low)) * 100).toFixed(2)}%`;
    draw(svg, 'rect', { class: 'range', x: at(seen.low), y: middle - 4, width, height: 8, rx: 4 });
    draw(svg, 'circle', { class: 'point', cx: at(seen.rate), cy: middle, r: 5 });
  }
  const guess = draw(svg, 'svg', { x: at(estimated), y: middle, overflow: 'visible' });
  draw(guess, 'path', { class: 'guess', d: 'M0-6L6 0L0 6L-6 0Z' });
}

const expanded = { partitions: false, events: false };

/** Shows how many rows are visible, and the button for the others. */
function more(id, shown, total, of) {
  const line = byId(`more-${id}`);
  const [few, many] = ROWS[id];
  line.hidden = total <= few;
  line.firstElementChild.textContent = shown < total ? `${shown} of ${total}, ${of}.` : `All ${total}.`;
  line.lastElementChild.textContent = expanded[id] ? `Show ${few}` : `Show ${Math.min(many, total)}`;
  line.lastElementChild.setAttribute('aria-expanded', String(expanded[id]));
}

function showSpaces(spaces) {
  const nameOf = (space) => `spaces.${space.space}`;
  list('spaces', 'space', spaces, nameOf, (card, space, name) => {
    const found = verdict(space.false_positives);
    fill(card, { ...space, derived: { verdict: found, topics: space.topics.join(', ') } }, name);
    card.dataset.verdict = found;
    card.classList.toggle('is-confirmed', space.confirm);
    card.classList.toggle('is-full', space.fill_ratio > 0.8);
    card.classList.toggle('is-over', space.fill_ratio > 1);
    card.classList.toggle('is-unobserved', !(space.false_positives.observed?.checked > 0));
    meter(card.querySelector('.meter'), space.fill_ratio, space.fill_ratio);
    ruler(card.querySelector('.ruler'), space.false_positives);
  });
}

function showPartitions(partitions) {
  const behind = (partition) => partition.lag ?? -1;
  const order = (a, b) => behind(b) - behind(a) || (a.topic < b.topic ? -1 : a.topic > b.topic ? 1 : a.partition - b.partition);
  const worst = [...partitions].sort(order);
  const shown = worst.slice(0, ROWS.partitions[Number(expanded.partitions)]);
  const nameOf = (partition) => `partitions.${partition.topic}.${partition.partition}`;
  const most = Math.max(1, behind(worst[0] ?? {}));
  list('partitions', 'partition', shown, nameOf, (row, partition, name) => {
    fill(row, partition, name);
    row.dataset.state = partition.state;
    row.querySelector('.bar').style.inlineSize = `${(Math.max(0, behind(partition)) / most) * 100}%`;
  });
  more('partitions', shown.length, worst.length, 'highest lag first');
}

function showTopics(topics) {
  const nameOf = (topic) => `topics.${topic.topic}`;
  list('topics', 'topic', topics, nameOf, (row, topic, name) => {
    fill(row, topic, name);
    const reasons = Object.entries(topic.invalid).flatMap(([reason, records]) => {
      const figure = document.createElement('span');
      Object.assign(figure.dataset, { field: `${name}.invalid.${reason}`, as: 'count' });
      write(figure, records);
      return [`, ${formats.words(reason)}: `, figure];
    });
    row.querySelector('.shadow').hidden = !topic.shadow;
    const times = row.querySelector('.times');
    times.textContent = [topic.time_warning, topic.content_warning].filter((warning) => warning !== null).join('; ');
    times.hidden = times.textContent === '';
    row.querySelector('.invalid').replaceChildren(...(reasons.length ? ['invalid', ...reasons] : []));
    const named = topic.values.map((counted, index) => ({ ...counted, index })).filter(({ value }) => value !== null);
    const worst = named.sort((a, b) => b.duplicates - a.duplicates).slice(0, ROWS_OF_VALUES);
    const counts = worst.flatMap(({ value, index, duplicates, records }) => {
      const figures = Object.entries({ duplicates, records }).map(([path, count]) => {
        const figure = document.createElement('span');
        Object.assign(figure.dataset, { field: `${name}.values.${index}.${path}`, as: 'count' });
        write(figure, count);
        return figure;
      });
      return [`, ${value}: `, figures[0], ' of ', figures[1]];
    });
    row.querySelector('.values').replaceChildren(...(counts.length ? ['duplicates in a sample', ...counts] : []));
  });
}

function showEvents(events) {
  const numbered = events.map((event, index) => ({ ...event, index })).reverse();
  const shown = numbered.slice(0, ROWS.events[Number(expanded.events)]);
  list('events', 'event', shown, (event) => `events.${event.index}`, (row, event, name) => {
    fill(row, event, name);
    row.dataset.level = event.level;
  });
  more('events', shown.length, events.length, 'newest first');
}

let latest = null;

/** Renders the lists that the buttons expand and collapse. */
function showLists() {
  showPartitions(latest.partitions);
  showEvents(latest.events);
}

function show(status) {
  const derived = derive(status);
  latest = status;
  byId('waiting').hidden = true;
  byId('content').hidden = false;
  for (const element of fixed) write(element, lookup({ ...status, derived }, element.dataset.field));
  byId('state').dataset.state = status.state;
  byId('reason').hidden = status.reason === null;
  const [left, ...others] = status.left_out;
  byId('left-out').hidden = !left;
  byId('left-out').textContent = left ? `Topic ${left.topic}${others.length ? ` and ${others.length} more are` : ' is'} not read: ${left.reason}` : '';
  document.title = `${status.instance}: ${status.state} – unseen`;
  for (const tile of tiles) sparkline(tile);
  const tile = (series) => tiles.find((tile) => tile.dataset.series === series).classList;
  tile('lag').toggle('is-partial', derived.lag_unknown > 0);
  tile('latency_p99_seconds').toggle('is-over', derived.latency_over);
  tile('dead_letters_per_second').toggle('is-bad', derived.dead_letters_recent > 0);
  const { state_disk_available_bytes: free, state_disk_size_bytes: size } = status.process;
  meter(byId('disk'), size ? 1 - free / size : null);
  byId('disk').classList.toggle('is-full', size > 0 && free / size < 0.1);
  showSpaces(status.spaces);
  showTopics(status.topics);
  showLists();
}

// ---- Polling ----

let answered = null; // time of the last answer, by the clock of this page
let failing = false;

class Unanswered extends Error {}

async function ask() {
  try {
    const response = await fetch('api/v1/status', { cache: 'no-store', signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (!response.ok) throw new Error(`HTTP status ${response.status}`);
    return await response.json();
  } catch (error) {
    throw new Unanswered(error.name === 'TimeoutError' ? `timeout after ${duration(TIMEOUT_MS / 1000)}` : error.message);
  }
}

function fail(error) {
  // Any other error is a bug of this page, so report it in the console.
  if (!(error instanceof Unanswered)) reportError(error);
  if (failing) return;
  failing = true;
  const [since, shown] = answered === null ? ['', ''] : [` since ${time(answered)}`, ' The page shows the last known values.'];
  byId('stale').textContent = `No answer from the worker${since} (${error.message}).${shown} Retrying every ${duration(POLL_MS / 1000)}.`;
  byId('stale').hidden = false;
  document.body.classList.add('is-stale');
  document.title = `No answer – ${document.title.replace(/^No answer – /, '')}`;
}

function recover() {
  failing = false;
  byId('stale').hidden = true;
  document.body.classList.remove('is-stale');
}

async function poll() {
  try {
    const status = await ask();
    answered = Date.now();
    recover();
    show(status);
    document.dispatchEvent(new CustomEvent('unseen:shown', { detail: status }));
  } catch (error) {
    fail(error);
  }
  setTimeout(poll, POLL_MS);
}

const fixed = [...document.querySelectorAll('[data-field]')];
const tiles = [...document.querySelectorAll('.tile')];
for (const tile of tiles) {
  const curve = draw(tile.querySelector('.curve'), 'svg', { class: 'spark', viewBox: '0 0 100 30', preserveAspectRatio: 'none' });
  for (const part of ['area', 'line', 'last']) draw(curve, 'path', { class: part });
}
for (const id of ['partitions', 'events']) {
  byId(`more-${id}`).lastElementChild.addEventListener('click', () => {
    expanded[id] = !expanded[id];
    showLists();
  });
}
poll();

// Checks the dashboard of a running worker in a headless Chromium:
//
//   node tests/dashboard/check.mjs http://127.0.0.1:8080/ [DIRECTORY_FOR_SCREENSHOTS]
//
// Prints a line for each failed check and exits with code 1 if there is one. Only reads from the worker.

import assert from 'node:assert/strict';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Browser } from './browser.mjs';
import { agrees, expected } from './expected.mjs';
import { empty, hostile, large, said, series, spaces, verdicts } from './statuses.mjs';

const [base, pictures] = process.argv.slice(2);
if (!base) {
  console.error('Usage: node check.mjs BASE_URL [DIRECTORY_FOR_SCREENSHOTS]');
  process.exit(2);
}
const home = new URL(base.endsWith('/') ? base : `${base}/`);
const POLL_MS = 200;
const WIDE = 1280;
const PHONE = 375;
// The number of a worker's partitions or events that the page shows at first.
const SHORT = 12;

const served = await fetch(home).catch((error) => error);
if (!served.ok) {
  console.error(`${home} does not serve the dashboard (${served.status ?? served.cause?.message ?? served.message}): start a worker, and pass the address of its [http] listen.`);
  process.exit(2);
}

const browser = await Browser.open();
setTimeout(() => {
  console.log('FAILED: the check ends within five minutes');
  browser.kill();
  process.exit(1);
}, 300_000).unref();

// The response to the page's requests: the worker's, one of our statuses, or none (null).
const WORKER = Symbol('worker');
let answer = WORKER;
let withheld = 0; // missing responses that Chromium has not reported yet
let loads = 0;
const complaints = [];
const strangers = [];

browser.on((method, params) => {
  if (method === 'Fetch.requestPaused') {
    const { requestId } = params;
    const headers = [{ name: 'Content-Type', value: 'application/json' }];
    const reply = {
      worker: () => browser.send('Fetch.continueRequest', { requestId }),
      nothing: () => browser.send('Fetch.failRequest', { requestId, errorReason: 'ConnectionRefused' }),
      ours: () => browser.send('Fetch.fulfillRequest', { requestId, responseCode: answer.code ?? 200, responseHeaders: headers, body: Buffer.from(answer.body ?? JSON.stringify(answer)).toString('base64') }),
    };
    if (answer === null || answer.code) withheld += 1;
    // The page may be gone by now.
    reply[answer === WORKER ? 'worker' : answer === null ? 'nothing' : 'ours']().catch(() => {});
  }
  if (method === 'Network.requestWillBeSent' && new URL(params.request.url).origin !== home.origin) strangers.push(params.request.url);
  if (method === 'Runtime.exceptionThrown') complaints.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
  if (method === 'Runtime.consoleAPICalled') complaints.push(`console.${params.type}: ${params.args.map(({ value, description }) => value ?? description).join(' ')}`);
  if (method === 'Log.entryAdded') {
    const { source, text, url } = params.entry;
    // Chromium itself reports each missing response.
    if (withheld > 0 && source === 'network' && url?.endsWith('/api/v1/status')) withheld -= 1;
    else complaints.push(`${params.entry.level}: ${text} ${url ?? ''}`);
  }
});

/** Runs in the page before the page's own script. Keeps the statuses that the page receives, and its latest figures. */
function watch() {
  window.seen = { statuses: [], figures: [] };
  document.addEventListener('unseen:shown', ({ detail }) => {
    window.seen.statuses.push(detail);
    window.seen.figures = [...document.querySelectorAll('[data-field]')].map((element) => [element.dataset.field, element.dataset.value, element.textContent]);
  });
}

for (const domain of ['Page', 'Runtime', 'Network', 'Log']) await browser.send(`${domain}.enable`);
await browser.send('Fetch.enable', { patterns: [{ urlPattern: '*/api/v1/status*' }] });
await browser.send('Page.addScriptToEvaluateOnNewDocument', { source: `(${watch})()` });

const wide = (width) => browser.send('Emulation.setDeviceMetricsOverride', { width, height: 900, deviceScaleFactor: pictures ? 2 : 1, mobile: width < 500 });
const prefer = (features) => browser.send('Emulation.setEmulatedMedia', { features: Object.entries(features).map(([name, value]) => ({ name: `prefers-${name}`, value })) });

async function load(poll = POLL_MS) {
  loads += 1;
  const query = `?poll=${poll}&load=${loads}`;
  await browser.send('Page.navigate', { url: new URL(query, home).href });
  await browser.until('the page is loaded', (wanted) => location.search === wanted && document.readyState === 'complete', query);
}

/** Waits until the page has shown `more` additional statuses. */
async function polls(more) {
  const before = await browser.run(() => window.seen.statuses.length);
  await browser.until(`${more} more statuses are shown`, (least) => window.seen.statuses.length >= least, before + more);
}

/** Loads the page with one of our statuses. */
async function given(status) {
  answer = status;
  await load();
  await polls(1);
}

async function picture(name) {
  if (!pictures) return;
  mkdirSync(pictures, { recursive: true });
  const { cssContentSize } = await browser.send('Page.getLayoutMetrics');
  const clip = { x: 0, y: 0, width: cssContentSize.width, height: cssContentSize.height, scale: 1 };
  const { data } = await browser.send('Page.captureScreenshot', { format: 'png', captureBeyondViewport: true, clip });
  writeFileSync(join(pictures, `${name}.png`), Buffer.from(data, 'base64'));
}

/** Runs in the page. Returns visible texts whose contrast is below the limit of WCAG AA. */
function faint() {
  const parse = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const over = ([r, g, b, a], ground) => [r, g, b].map((part, index) => part * a + ground[index] * (1 - a));
  const ground = (element) => {
    if (!element) return [255, 255, 255];
    const colour = parse(getComputedStyle(element).backgroundColor);
    return colour[3] === 1 ? colour.slice(0, 3) : over(colour, ground(element.parentElement));
  };
  const luminance = (colour) => {
    const [r, g, b] = colour.map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !element.checkVisibility() || element.closest('script, template, noscript')) continue;
    const style = getComputedStyle(element);
    const behind = ground(element);
    const colour = over(parse(element.namespaceURI.endsWith('svg') ? style.fill : style.color), behind);
    const [light, dark] = [luminance(colour), luminance(behind)].sort((a, b) => b - a);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < 4.5) found.push(`${texts.currentNode.data.trim().slice(0, 30)}: ${contrast.toFixed(2)}`);
  }
  return found;
}

/** Runs in the page. Returns how much wider the page is than the window, and the elements that overflow. */
function tooWide() {
  const { scrollWidth, clientWidth } = document.documentElement;
  const out = [...document.querySelectorAll('body *')].filter((element) => element.getBoundingClientRect().right > clientWidth + 0.5 && element.checkVisibility());
  return scrollWidth > clientWidth ? [`${scrollWidth} of ${clientWidth} pixels`, ...out.slice(0, 3).map((element) => element.outerHTML.slice(0, 120))] : [];
}

/** Compares every figure of the page with the expected one for the statuses that it received. */
async function compare(rows = Infinity) {
  const { statuses, figures } = await browser.run(() => window.seen);
  const wanted = expected(statuses);
  const shown = new Map(figures.map(([field, value]) => [field, value]));
  assert.equal(shown.size, figures.length, 'no two figures have the same field');
  const numbers = ([field, value]) => {
    const want = wanted.get(field);
    const same = typeof want === 'number' && value !== 'null' ? Math.abs(Number(value) - want) <= 1e-9 * Math.abs(want) : value === String(want);
    return same ? [] : [`${field} is ${value}, but should be ${want}`];
  };
  assert.deepEqual(figures.flatMap(numbers), [], 'figures that differ from the status');
  const limited = (field) => rows < Infinity && /^(partitions|events)\./.test(field);
  assert.deepEqual([...wanted.keys()].filter((field) => !shown.has(field) && !limited(field)), [], 'figures that are not shown');
  const words = ([field, , text]) => {
    const want = wanted.get(field);
    const time = field.endsWith('time_ms');
    const right = want === null ? text === '–' : time ? /\d\d:\d\d:\d\d$/.test(text) : typeof want === 'number' ? agrees(text, want) : field.endsWith('verdict') ? text.length > 5 : text.replaceAll(' ', '_') === want.replaceAll(' ', '_');
    return right ? [] : [`${field} is written ${text}, but is ${want}`];
  };
  assert.deepEqual(figures.flatMap(words), [], 'texts that do not say their figure');
}

const claims = {
  async 'the page is served with a policy that lets in nothing else'() {
    assert.match(served.headers.get('content-security-policy') ?? 'no policy', /default-src 'self'(;|$)/);
  },

  async 'every figure is what the status says'() {
    await load();
    // In a picture, the curves should look as if the page has been open for a while.
    await polls(pictures ? 75 : 3);
    await compare(SHORT);
  },

  async 'light and dark differ, and both have the contrast of WCAG AA'() {
    const grounds = {};
    for (const scheme of ['light', 'dark']) {
      await prefer({ 'color-scheme': scheme });
      grounds[scheme] = await browser.run(() => ['backgroundColor', 'color'].map((part) => getComputedStyle(document.body)[part]));
      assert.deepEqual(await browser.run(faint), [], `too little contrast when ${scheme}`);
      await picture(scheme);
    }
    const bright = (colour) => colour.match(/\d+/g).map(Number).reduce((a, b) => a + b) / 3;
    assert.ok(bright(grounds.light[0]) > 200 && bright(grounds.light[1]) < 60, `light is ${grounds.light}`);
    assert.ok(bright(grounds.dark[0]) < 60 && bright(grounds.dark[1]) > 200, `dark is ${grounds.dark}`);
    await prefer({ 'color-scheme': 'light' });
  },

  async 'a phone of 375 pixels shows all without scrolling sideways'() {
    await wide(PHONE);
    await polls(1);
    assert.deepEqual(await browser.run(tooWide), []);
    await compare(SHORT);
    await picture('phone');
    await wide(WIDE);
    assert.deepEqual(await browser.run(tooWide), []);
  },

  async 'nothing moves for those who want less motion'() {
    const moving = () => [...document.querySelectorAll('*')].map((element) => getComputedStyle(element))
      .filter(({ transitionDuration, animationName }) => transitionDuration !== '0s' || animationName !== 'none').length;
    await prefer({ 'reduced-motion': 'no-preference' });
    assert.notEqual(await browser.run(moving), 0);
    await prefer({ 'reduced-motion': 'reduce' });
    assert.equal(await browser.run(moving), 0);
    await prefer({});
  },

  async 'a banner says since when there is no answer, and goes with the next'() {
    const banner = () => document.querySelector('#stale').checkVisibility() && document.querySelector('#stale').textContent;
    assert.equal(await browser.run(banner), false);
    for (const silence of [null, { code: 500, body: '{}' }, { body: 'not JSON' }]) {
      answer = silence;
      const text = await browser.until('the banner is shown', banner);
      assert.match(text, /since \d\d:\d\d:\d\d/);
      assert.match(await browser.run(() => document.querySelector('#state').innerText), /^last known/);
      assert.deepEqual(await browser.run(faint), [], 'too little contrast without an answer');
      if (!silence) await picture('stale');
      answer = WORKER;
      await browser.until('the banner is gone', () => !document.querySelector('#stale').checkVisibility());
      await polls(1);
      await compare(SHORT);
    }
  },

  async 'a page that never got an answer says so, and recovers'() {
    answer = null;
    await load();
    await browser.until('the banner is shown', () => document.querySelector('#stale').checkVisibility());
    assert.equal(await browser.run(() => document.querySelector('main').checkVisibility()), false);
    answer = WORKER;
    await polls(1);
    assert.equal(await browser.run(() => document.querySelector('#stale').checkVisibility()), false);
  },

  async 'a worker that has just started is shown, with the reason why it is not ready'() {
    await given(empty);
    await compare();
    const { text, none } = await browser.run(() => ({
      text: document.body.innerText,
      none: ['spaces', 'partitions', 'topics', 'events'].every((id) => document.querySelector(`#no-${id}`).checkVisibility()),
    }));
    assert.ok(text.includes(empty.reason), 'the reason is shown');
    assert.ok(none, 'each empty list says that it is empty');
    assert.doesNotMatch(text, /NaN|undefined|null|Infinity/);
    assert.deepEqual(await browser.run(faint), []);
    await picture('empty');
  },

  async 'rates and latencies are of what came between two statuses'() {
    await given(series[0]);
    const tiles = () => [...document.querySelectorAll('.tile .value')].map((value) => value.innerText.replaceAll('\u00a0', ' '));
    for (const [index, words] of said.entries()) {
      answer = series[index + 1];
      await browser.until('the next status is shown', (time) => window.seen.statuses.at(-1).time_ms === time, answer.time_ms);
      const [records, unseen, duplicates, , latency] = await browser.run(tiles);
      assert.deepEqual([records, unseen, duplicates, latency], words);
    }
  },

  async 'another process at the same address starts the curves anew'() {
    await given({ ...large, time_ms: large.time_ms - 1000 });
    answer = { ...empty, started_ms: large.time_ms - 1, time_ms: large.time_ms };
    await browser.until('the other process is shown', (time) => window.seen.statuses.at(-1).time_ms === time, large.time_ms);
    await compare();
  },

  async 'each space says whether it keeps its false-positive rate'() {
    await given({ ...large, spaces: Object.values(spaces) });
    const said = await browser.run(() => [...document.querySelectorAll('.space')].map((card) => [card.querySelector('h3').textContent, card.querySelector('.verdict').innerText, getComputedStyle(card.querySelector('.verdict')).color]));
    const by = Object.fromEntries(said.map(([name, text, colour]) => [name, { text, colour }]));
    assert.deepEqual(Object.keys(by), Object.keys(spaces));
    const words = (texts) => Object.fromEntries(Object.entries(texts).map(([name, { text }]) => [name, text.trim()]));
    assert.deepEqual(words(by), Object.fromEntries(Object.entries(verdicts).map(([name, [text]]) => [name, text])));
    const colours = { bad: by.above.colour, warn: by.perhaps.colour, good: by.within.colour };
    assert.equal(new Set(Object.values(colours)).size, 3, 'good, a warning and bad have a colour each');
    const miscoloured = Object.entries(verdicts).filter(([name, [, colour]]) => colour && by[name].colour !== colours[colour]);
    assert.deepEqual(miscoloured, [], 'spaces in another colour than theirs');
    await picture('spaces');
  },

  async 'a topic whose record times keep its window from moving, or whose contents are empty, shows why'() {
    await given(large);
    const shown = () => [...document.querySelectorAll('#topics .times')].filter((times) => times.checkVisibility()).map((times) => times.textContent);
    assert.deepEqual(await browser.run(shown), large.topics.map((topic) => [topic.time_warning, topic.content_warning].filter(Boolean).join('; ')).filter(Boolean));
  },

  async 'topics that are not read are shown with the first reason'() {
    const shown = () => [...document.querySelectorAll('#left-out')].filter((banner) => banner.checkVisibility()).map((banner) => banner.textContent);
    await given(empty);
    assert.deepEqual(await browser.run(shown), []);
    await given(large);
    const [{ topic, reason }] = large.left_out;
    assert.deepEqual(await browser.run(shown), [`Topic ${topic} and 1 more are not read: ${reason}`]);
  },

  async 'hundreds of partitions are cut to those with the most lag, and shown on demand'() {
    await given(large);
    await compare(SHORT);
    const lags = () => [...document.querySelectorAll('#partitions tr')].map((row) => row.querySelector('.lag [data-value]').dataset.value);
    const sorted = large.partitions.map(({ lag }) => lag ?? -1).sort((a, b) => b - a).map((lag) => (lag < 0 ? 'null' : String(lag)));
    assert.deepEqual(await browser.run(lags), sorted.slice(0, 12));
    assert.match(await browser.run(() => document.querySelector('#more-partitions').innerText), /12 of 400/);
    const toggle = () => document.querySelectorAll('.more button').forEach((button) => button.click());
    await browser.run(toggle);
    assert.deepEqual(await browser.run(lags), sorted);
    await polls(1);
    await compare();
    const times = await browser.run(() => [...document.querySelectorAll('#events time')].map((time) => Number(time.dataset.value)));
    assert.deepEqual(times, large.events.map((event) => event.time_ms).reverse());
    await browser.run(toggle);
    assert.equal((await browser.run(lags)).length, 12);
  },

  async 'names are text, however long and whatever they hold'() {
    assert.equal(await browser.run(() => document.querySelectorAll('body :is(img, body script)').length), 0);
    assert.ok((await browser.run(() => document.body.innerText)).includes(hostile));
    for (const width of [WIDE, 800, PHONE]) {
      await wide(width);
      assert.deepEqual(await browser.run(tooWide), [], `at ${width}`);
    }
    await picture('large-phone');
    await wide(WIDE);
    await prefer({ 'color-scheme': 'dark' });
    assert.deepEqual(await browser.run(faint), []);
    await picture('large-dark');
  },

  // A browser does not wait at all if it is told to wait for an invalid time.
  async 'a page that is to ask after ages does not ask all the time'() {
    answer = WORKER;
    await load('1e12');
    await browser.until('a status is shown', () => window.seen.statuses.length > 0);
    const more = () => new Promise((resolve) => { setTimeout(() => resolve(window.seen.statuses.length), 1000); });
    assert.equal(await browser.run(more), 1);
    await load();
  },

  async 'the page asks no other origin'() {
    assert.deepEqual(strangers, []);
  },

  async 'the console is silent'() {
    assert.deepEqual(complaints, []);
  },
};

let failed = 0;
try {
  await wide(WIDE);
  for (const [claim, test] of Object.entries(claims)) {
    await test().then(() => console.log(`ok: ${claim}`), (error) => {
      failed += 1;
      const details = error.actual?.length && !error.expected?.length ? [].concat(error.actual).slice(0, 5).join('; ') : '';
      console.log(`FAILED: ${claim}: ${`${error.message.split('\n')[0]} ${details}`.trim()}`);
    });
  }
} finally {
  await browser.close();
}
process.exitCode = failed ? 1 : 0;

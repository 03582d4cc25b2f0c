// A headless Chromium with one page, controlled over a DevTools pipe. Needs nothing but Node.js and Chromium.

import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const DEADLINE_MS = 20_000;

function chromium() {
  const names = [process.env.CHROMIUM, 'chromium', 'chromium-browser', 'google-chrome'].filter(Boolean);
  const found = names.find((name) => spawnSync(name, ['--version']).status === 0);
  if (!found) throw new Error('No Chromium was found: install it (on Debian: apt-get install chromium), or set CHROMIUM to its path.');
  return found;
}

export class Browser {
  #sent = new Map();
  #listeners = [];
  #session;
  #next = 0;

  static async open() {
    const browser = new Browser();
    browser.profile = mkdtempSync(join(tmpdir(), 'unseen-dashboard-'));
    const flags = ['--headless', '--remote-debugging-pipe', `--user-data-dir=${browser.profile}`, '--no-first-run', '--disable-gpu', '--disable-dev-shm-usage',
      '--disable-background-networking', '--disable-component-update', '--hide-scrollbars', '--force-color-profile=srgb',
      // Chromium cannot run its sandbox as root. It opens only our own page.
      ...(process.getuid?.() === 0 ? ['--no-sandbox'] : [])];
    browser.process = spawn(chromium(), [...flags, 'about:blank'], { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
    browser.ended = new Promise((resolve) => browser.process.once('exit', resolve));
    browser.ended.then(() => browser.#sent.forEach(({ reject }) => reject(new Error('Chromium has ended.'))));
    let rest = Buffer.alloc(0);
    browser.process.stdio[4].on('data', (data) => {
      const messages = Buffer.concat([rest, data]);
      let from = 0;
      for (let to; (to = messages.indexOf(0, from)) >= 0; from = to + 1) browser.#receive(JSON.parse(messages.subarray(from, to).toString()));
      rest = messages.subarray(from);
    });
    const { targetId } = await browser.send('Target.createTarget', { url: 'about:blank' });
    const { sessionId } = await browser.send('Target.attachToTarget', { targetId, flatten: true });
    browser.#session = sessionId;
    return browser;
  }

  #receive({ id, method, params, result, error }) {
    if (id === undefined) {
      for (const listener of this.#listeners) listener(method, params);
      return;
    }
    const { resolve, reject, sent } = this.#sent.get(id);
    this.#sent.delete(id);
    if (error) reject(new Error(`${sent}: ${error.message}`));
    else resolve(result);
  }

  on(listener) {
    this.#listeners.push(listener);
  }

  send(method, params = {}) {
    this.#next += 1;
    const id = this.#next;
    return new Promise((resolve, reject) => {
      this.#sent.set(id, { resolve, reject, sent: method });
      this.process.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId: this.#session })}\0`);
    });
  }

  /** Calls a function in the page and returns its result. */
  async run(body, ...args) {
    const expression = `(${body})(...${JSON.stringify(args)})`;
    const { result, exceptionDetails } = await this.send('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  }

  /** Waits until a function in the page returns a true value. Throws after the deadline. */
  async until(what, body, ...args) {
    const deadline = Date.now() + DEADLINE_MS;
    for (;;) {
      const found = await this.run(body, ...args);
      if (found) return found;
      if (Date.now() > deadline) throw new Error(`not within ${DEADLINE_MS / 1000} s: ${what}`);
      await new Promise((resolve) => { setTimeout(resolve, 50); });
    }
  }

  kill() {
    this.process.kill('SIGKILL');
    rmSync(this.profile, { recursive: true, force: true, maxRetries: 5 });
  }

  async close() {
    this.#session = undefined;
    await this.send('Browser.close').catch(() => {});
    await this.ended;
    rmSync(this.profile, { recursive: true, force: true, maxRetries: 5 });
  }
}

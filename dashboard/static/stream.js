// One live connection: server-sent events, tried again where those fail.

import { timed } from "./timing.js";

const KINDS = ["step", "model", "policy", "effect", "mode", "ranks", "jobs"];
const RETRY_MS = 30_000;
const MAX_ERRORS = 3;
// A proxy may hold the stream back for ever; the page must not stay empty for that.
const OPEN_WITHIN_MS = 4_000;

// States: connecting, live, reconnecting, polling.
export class Stream {
  // handlers: event(kind, data), refetch(), state(name).
  constructor(url, handlers) {
    this.url = url;
    this.handlers = handlers;
    this.source = null;
    this.retry = null;
    this.late = null;
    this.errors = 0;
  }

  start() {
    this.connect("connecting");
  }

  stop() {
    this.source?.close();
    this.source = null;
    this.stopTimers();
  }

  stopTimers() {
    clearTimeout(this.late);
    clearInterval(this.retry);
    this.retry = null;
  }

  connect(state) {
    this.errors = 0;
    this.handlers.state(state);
    this.source?.close();
    clearTimeout(this.late);
    const source = new EventSource(this.url);
    this.source = source;
    this.late = setTimeout(() => this.poll(), OPEN_WITHIN_MS);
    // Fetching after the stream is open leaves no gap; a replayed step overwrites itself.
    source.addEventListener("open", () => this.opened());
    source.addEventListener("error", () => this.failed(source));
    source.addEventListener("resync", () => this.handlers.refetch());
    for (const kind of KINDS) {
      source.addEventListener(kind, ({ data }) => {
        timed(`libra-${kind}`, () => this.handlers.event(kind, JSON.parse(data)));
      });
    }
  }

  opened() {
    this.errors = 0;
    this.stopTimers();
    this.handlers.state("live");
    this.handlers.refetch();
  }

  failed(source) {
    this.errors += 1;
    const over = source.readyState === EventSource.CLOSED || this.errors >= MAX_ERRORS;
    if (over) this.poll();
    else if (this.retry === null) this.handlers.state("reconnecting");
  }

  // Without a stream the page's own rounds find steps that no event brought.
  poll() {
    this.source?.close();
    clearTimeout(this.late);
    if (this.retry !== null) return;
    this.handlers.state("polling");
    this.handlers.refetch();
    this.retry = setInterval(() => this.connect("polling"), RETRY_MS);
  }
}

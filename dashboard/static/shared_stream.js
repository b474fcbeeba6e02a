// One live connection a browser for each job, however many tabs look at it.
//
// A browser has six connections to a host, and a stream holds one for good. So of the tabs that are
// in sight one leads: it holds a lock, follows the stream and passes on what it hears. A tab out of
// sight neither leads nor listens. Of several jobs only the first few have streams, others poll.

import { Stream } from "./stream.js";

const STREAMS = 3;
const RETRY_MS = 30_000;

const canShare = () => "locks" in navigator && "BroadcastChannel" in window;

export class SharedStream {
  // handlers: event(kind, data), refetch(), state(name).
  constructor(url, handlers) {
    this.url = String(url);
    this.name = `libra ${this.url}`;
    this.id = Math.random();
    this.handlers = handlers;
    this.leave = null;
    this.channel = null;
    this.leads = false;
    this.resting = false;
    this.started = false;
  }

  start() {
    if (this.started) return;
    this.started = true;
    document.addEventListener("visibilitychange", () => this.follow());
    this.follow();
  }

  // A reader who is not known would only be refused, again and again.
  rest(resting) {
    this.resting = resting;
    if (this.started) this.follow();
  }

  follow() {
    this.leave?.();
    this.leave = null;
    if (document.hidden || this.resting) this.handlers.state("paused");
    else this.join();
  }

  join() {
    const gone = new AbortController();
    const { signal } = gone;
    const channel = canShare() ? new BroadcastChannel(this.name) : null;
    this.channel = channel;
    this.leave = () => {
      gone.abort();
      channel?.close();
    };
    this.handlers.state("connecting");
    if (!channel) {
      this.lead(signal);
      return;
    }
    channel.addEventListener("message", ({ data }) => this.heard(data));
    // Whoever leads already tells how it stands; the views are fetched once that is known.
    channel.postMessage({ asks: this.id });
    const lead = () => this.leadWithSlot(signal);
    navigator.locks.request(this.name, { signal }, lead).catch(unlessAborted);
  }

  heard({ asks, to, ...message }) {
    if (asks !== undefined && this.leads) {
      this.channel.postMessage({ to: asks, state: this.state, refetch: true });
    }
    if (!this.leads && (to === undefined || to === this.id)) this.hand(message);
  }

  // Hold one of the few places for a stream, as soon as there is one, until left.
  async leadWithSlot(signal) {
    this.leads = true;
    while (!signal.aborted) {
      for (let slot = 0; slot < STREAMS && !signal.aborted; slot += 1) {
        const hold = (lock) => (lock ? this.lead(signal) : null);
        await navigator.locks.request(`libra stream ${slot}`, { ifAvailable: true }, hold);
      }
      if (!signal.aborted) {
        this.tell({ state: "polling", refetch: true });
        await pause(RETRY_MS, signal);
      }
    }
    this.leads = false;
  }

  // Follow the stream and pass it on; resolves once this tab has left.
  lead(signal) {
    this.leads = true;
    const stream = new Stream(this.url, {
      event: (...event) => this.tell({ event }),
      state: (state) => this.tell({ state }),
      refetch: () => this.tell({ refetch: true }),
    });
    stream.start();
    return new Promise((resolve) => {
      const stop = () => {
        stream.stop();
        this.leads = false;
        resolve();
      };
      if (signal.aborted) stop();
      else signal.addEventListener("abort", stop, { once: true });
    });
  }

  tell(message) {
    if (message.state) this.state = message.state;
    this.channel?.postMessage(message);
    this.hand(message);
  }

  hand({ state, event, refetch }) {
    if (state) this.handlers.state(state);
    if (event) this.handlers.event(...event);
    if (refetch) this.handlers.refetch();
  }
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    const stop = () => {
      clearTimeout(timer);
      resolve();
    };
    signal.addEventListener("abort", stop, { once: true });
  });
}

function unlessAborted(error) {
  if (error.name !== "AbortError") throw error;
}

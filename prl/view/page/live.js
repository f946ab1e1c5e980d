// What happens in a run that is going on, by server-sent events, through lost connections. A browser comes back by
// itself and says what it heard last; where it gives up for good, because the answer was no stream, it is opened anew.
//
// A browser has six connections to a server, for all tabs together, and a stream holds one. So one tab listens for all
// that show the same run, the holder of a lock, and tells the others; a tab that is hidden lets go. Whoever listens next
// goes on behind what it has heard from the one before.

const KINDS = ["step", "status", "event", "evaluation"];
const MAX_WAIT_MS = 15000;

export class Live {
  #source = null;
  #timer = null;
  #failures = 0;
  #heard = "";
  #asks = null;
  #release = null;
  #isClosed = false;

  /**
   * Listens until `close()`. `onEvent(kind, data)`; `onState("live")`, `("lost", {failures})` while it is tried again,
   * `("ended", {state})`.
   */
  constructor(run, { onEvent, onState }) {
    Object.assign(this, { run, onEvent, onState });
    this.name = `prl ${location.pathname} ${run}`;
    this.channel = new BroadcastChannel(this.name);
    this.channel.onmessage = ({ data }) => this.#told(data);
    document.addEventListener("visibilitychange", this.#seen);
    this.#seen();
  }

  /** Take part while somebody looks. */
  #seen = () => {
    if (document.hidden) return this.#rest();
    if (this.#asks) return;
    const mine = (this.#asks = new AbortController());
    const lead = () =>
      new Promise((release) => {
        if (mine !== this.#asks) return release();
        this.#release = release;
        this.#open();
      });
    if (!navigator.locks) lead(); // a browser gives locks only to https and to this machine: each tab for itself
    else navigator.locks.request(this.name, { signal: mine.signal }, lead).catch(() => {}); // not wanted any more
  };

  #rest() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#asks?.abort();
    this.#release?.();
    this.#source = this.#asks = this.#release = null;
  }

  #open() {
    const from = this.#heard ? `?last=${encodeURIComponent(this.#heard)}` : "";
    const source = new EventSource(`api/${encodeURIComponent(this.run)}/stream${from}`);
    const tell = (kind, data, heard = this.#heard) => {
      const told = { kind, data, heard };
      this.channel.postMessage(told);
      this.#told(told);
    };
    this.#source = source;
    source.onopen = () => {
      this.#failures = 0;
      tell("live", {});
    };
    for (const kind of KINDS)
      source.addEventListener(kind, (message) => tell(kind, parsed(message.data), message.lastEventId));
    source.addEventListener("end", (message) => tell("ended", parsed(message.data)));
    source.onerror = () => {
      this.#failures += 1;
      tell("lost", { failures: this.#failures });
      if (source.readyState === EventSource.CLOSED)
        this.#timer = setTimeout(() => this.#open(), Math.min(MAX_WAIT_MS, 500 * 2 ** this.#failures));
    };
  }

  /** What this tab heard, or was told by the one that listens. */
  #told({ kind, data, heard }) {
    if (this.#isClosed) return;
    this.#heard = heard;
    if (kind === "ended") this.close();
    if (KINDS.includes(kind)) this.onEvent(kind, data);
    else this.onState(kind, data);
  }

  close() {
    this.#isClosed = true;
    document.removeEventListener("visibilitychange", this.#seen);
    this.#rest();
    this.channel.close();
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}

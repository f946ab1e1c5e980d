// What happens in a run that is going on, by server-sent events, through lost connections. A browser comes back by
// itself and says what it heard last; where it gives up for good, because the answer was no stream, it is opened anew.

const KINDS = ["step", "status", "event", "evaluation"];
const MAX_WAIT_MS = 15000;

export class Live {
  #source = null;
  #timer = null;
  #failures = 0;

  /**
   * Listens until `close()`. `onEvent(kind, data)`; `onState("live")`, `("lost", {failures})` while it is tried again,
   * `("ended", {state})`.
   */
  constructor(run, { onEvent, onState }) {
    Object.assign(this, { run, onEvent, onState });
    this.#open();
  }

  #open() {
    const source = new EventSource(`api/${encodeURIComponent(this.run)}/stream`);
    this.#source = source;
    source.onopen = () => {
      this.#failures = 0;
      this.onState("live", {});
    };
    for (const kind of KINDS) source.addEventListener(kind, (message) => this.onEvent(kind, parsed(message.data)));
    source.addEventListener("end", (message) => {
      this.close();
      this.onState("ended", parsed(message.data));
    });
    source.onerror = () => {
      this.#failures += 1;
      this.onState("lost", { failures: this.#failures });
      if (source.readyState === EventSource.CLOSED)
        this.#timer = setTimeout(() => this.#open(), Math.min(MAX_WAIT_MS, 500 * 2 ** this.#failures));
    };
  }

  close() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}

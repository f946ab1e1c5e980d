// Which keys a run has written so far: some come with the first step, some only once they are needed.

import { get, isStale, Latest } from "./api.js";
import { throttled } from "./dom.js";

const AGAIN_MS = 5000;

export class Keys {
  #latest = new Latest();
  #known = null;

  /** `onKeys(keys)` at first and whenever there are others; `onError(error)`. */
  constructor(run, { onKeys, onError }) {
    Object.assign(this, { run, onKeys, onError });
    this.again = throttled(() => this.ask(), AGAIN_MS);
  }

  async ask() {
    try {
      const keys = await get([this.run, "keys"], {}, { signal: this.#latest.next() });
      const known = [...keys.metrics, ...keys.evaluations].join();
      if (known === this.#known) return;
      this.#known = known;
      await this.onKeys(keys);
    } catch (error) {
      if (!isStale(error)) this.onError(error);
    }
  }

  close() {
    this.again.stop();
    this.#latest.stop();
  }
}

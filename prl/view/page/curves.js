// Curves of one run or of several side by side, over steps, time or samples: asked for together, drawn apart, zoomed
// together.

import { get, isStale, Latest } from "./api.js";
import { ChartCard } from "./chart_card.js";
import { empty, h, loading, put, throttled, trouble } from "./dom.js";
import { comparedStyle, lineStyle } from "./palette.js";
import { smoothed } from "./smoothing.js";

const REFRESH_MS = 1500;
const MAX_WHOLE = 3; // of more runs only the first line of a chart is compared, where the others are marked as `own`

export class Curves {
  #latest = new Latest();
  #specs = [];
  #cards = [];

  /**
   * `settings()` -> {x, smooth, log, from, to, runs: [names]}. `onZoom(from step, to step)`, `onReset()`. `derive(answer,
   * run)` may add to an answer. `onAnswer(answers)` when there are new ones.
   */
  constructor({ settings, onZoom, onReset, derive = (answer) => answer, sync = "curves", onAnswer = () => {} }) {
    Object.assign(this, { settings, onZoom, onReset, derive, sync, onAnswer });
    this.element = h("div", { class: "grid" });
    this.notice = h("div");
    this.refresh = throttled(() => this.load(), REFRESH_MS);
  }

  /** What is drawn from now on: [{title, about, format, lines: [{key, label, own?}], extra?, wide?, noLog?, noSmooth?,
   * compared?: only beside other runs}]. */
  async choose(specs) {
    this.destroy();
    this.#specs = specs;
    this.#cards = specs.map(
      (spec) =>
        new ChartCard({
          ...spec,
          sync: this.sync,
          onReset: this.onReset,
          onZoom: (from, to) => this.#zoomed(from, to),
        }),
    );
    put(
      this.element,
      this.#cards.map((card) => card.element),
    );
    await this.load();
  }

  /** Ask and draw anew. */
  async load() {
    const signal = this.#latest.next(),
      { x, from, to, runs } = this.settings();
    const keys = [
      ...new Set(this.#specs.flatMap((spec) => spec.lines.map((line) => line.key)).concat(this.needs ?? [])),
    ].join(",");
    const points = Math.max(200, Math.min(1000, this.element.clientWidth || 600));
    this.element.setAttribute("aria-busy", "true");
    try {
      if (!this.answers) put(this.notice, loading("Loading curves"));
      const answers = await Promise.all(
        runs.map((run) =>
          get(
            [run, "series"],
            { keys, x, from, to, points },
            { signal, onIndexing: (share) => put(this.notice, loading("Reading the run", share)) },
          ),
        ),
      );
      const began = await this.#begins(x, runs, signal);
      this.answers = answers.map((answer, n) => this.derive(since(answer, x, began[n]), runs[n]));
      const none = answers.every((answer) => answer.total === 0);
      put(this.notice, none && empty("No step yet", "Curves begin with the first step that is done."));
      this.element.hidden = none;
      this.draw();
      this.onAnswer(this.answers);
    } catch (error) {
      if (isStale(error)) return;
      put(
        this.notice,
        trouble(error, () => this.load()),
      );
    } finally {
      if (!signal.aborted) this.element.removeAttribute("aria-busy");
    }
  }

  /** When each run began: time is counted from there, also where only a part is shown. */
  async #begins(x, runs, signal) {
    if (x !== "at") return runs.map(() => 0);
    this.began ??= new Map();
    for (const run of runs) {
      if (this.began.has(run)) continue;
      const first = await get([run, "series"], { keys: "time_s", x, to: 1, points: 1 }, { signal });
      if (first.x.length) this.began.set(run, (first.x[0] ?? 0) - (first.series.time_s?.mean[0] ?? 0));
    }
    return runs.map((run) => this.began.get(run) ?? 0);
  }

  /** Draw what is there, as it is to be drawn now. */
  draw() {
    const { x, log, runs } = this.settings();
    this.#specs.forEach((spec, at) => {
      const lines = [];
      this.#cards[at].element.hidden = Boolean(spec.compared) && runs.length === 1;
      if (this.#cards[at].element.hidden) return;
      this.answers?.forEach((answer, which) => {
        spec.lines.forEach((line, n) => {
          const found = answer.series[line.key];
          if (!found || (line.own && runs.length > MAX_WHOLE && n > 0)) return;
          const label = runs.length === 1 ? line.label : [spec.lines.length > 1 && line.label, runs[which]].filter(Boolean).join(", "),
            style = runs.length === 1 ? lineStyle(n) : comparedStyle(which, n, runs.length);
          lines.push(this.#line(answer, found, { ...line, label }, style, spec));
        });
      });
      spec.extra?.(lines, this.answers ?? [], x);
      this.#cards[at].show({ lines, kind: x, log: log && !spec.noLog });
    });
  }

  #line(answer, found, { label, points }, style, { noSmooth }) {
    const smooth = noSmooth ? 0 : this.settings().smooth;
    const coarse = answer.total > answer.x.length;
    const line = { label, style, points, x: answer.x, y: smoothed(found.mean, smooth) };
    if (coarse) Object.assign(line, { min: found.min, max: found.max });
    else if (smooth > 0) line.raw = found.mean;
    return line;
  }

  #zoomed(from, to) {
    const answer = this.answers?.[0];
    if (!answer?.x.length) return;
    const first = answer.x.findIndex((x) => x >= from),
      last = answer.x.findLastIndex((x) => x <= to);
    const before = answer.step[Math.max(0, first - 1)] ?? 1;
    const low = Math.max(1, Math.min(first < 0 ? before : answer.step[first], before + 1)),
      high = last < 0 ? answer.step[0] : answer.step[last];
    if (high > low) this.onZoom(low, high);
  }

  destroy() {
    this.refresh.stop();
    this.#latest.stop();
    for (const card of this.#cards) card.destroy();
    this.#cards = [];
  }
}

function since(answer, x, began) {
  if (x !== "at") return answer;
  return { ...answer, x: answer.x.map((at) => at - began) };
}

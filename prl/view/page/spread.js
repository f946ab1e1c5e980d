// A distribution over steps: a plane of shades (a column per step, a row per bin) and, of the step under the cursor,
// the same as bars with their numbers. The plane is a slider for those who do not see it or do not use a mouse.

import { h, put } from "./dom.js";
import { colour, faint } from "./palette.js";
import { compact, percent, whole } from "./format.js";

const ROW = 18,
  AXIS = 20,
  LABEL = 76,
  MAX_ROWS = 24;

export class Spread {
  #size = new ResizeObserver(() => this.draw());
  #theme = () => this.draw();
  #at = null;

  /** `bin(first, last, edges)` names the bins of a row; `of` what is counted; `least` bins are always shown. */
  constructor({ title, about, of, bin, least = 1 }) {
    Object.assign(this, { bin, of, title, least });
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.plane = h(
      "div",
      {
        class: "plane",
        tabindex: "0",
        role: "slider",
        "aria-label": `${title}, by step`,
        "aria-valuemin": 0,
        "aria-valuemax": 0,
        "aria-valuenow": 0,
        onkeydown: (event) => this.#key(event),
        onpointermove: (event) => this.#point(event),
        onpointerleave: () => this.#choose(null),
      },
      this.canvas,
    );
    this.table = h("table");
    this.body = h("div", { class: "spread" }, this.plane, this.table);
    this.nothing = h("div");
    this.element = h(
      "section",
      { class: "card", "aria-label": title },
      h("header", {}, h("h2", {}, title), h("span", { class: "about", title: about }, about)),
      this.body,
      this.nothing,
    );
    this.#size.observe(this.plane);
    addEventListener("prl-theme", this.#theme);
  }

  destroy() {
    this.#size.disconnect();
    removeEventListener("prl-theme", this.#theme);
  }

  /** {step, edges, counts} of the server; `nothing` is shown where there are no counts. */
  show(given, nothing) {
    const some = given.counts?.some((each) => each?.length);
    this.body.hidden = !some;
    put(this.nothing, some ? null : nothing);
    this.given = some ? given : null;
    if (!some) return;
    const bins = Math.max(...given.counts.map((each) => (each?.findLastIndex((count) => count > 0) ?? -1) + 1), 1),
      long = Math.max(bins, this.least);
    this.together = Math.ceil(long / MAX_ROWS);
    this.rows = Math.ceil(long / this.together);
    this.shares = given.counts.map((each) => {
      const all = (each ?? []).reduce((a, b) => a + b, 0);
      const sum = (row) =>
        (each ?? []).slice(row * this.together, (row + 1) * this.together).reduce((a, b) => a + b, 0);
      return Array.from({ length: this.rows }, (_, row) => (all ? sum(row) / all : 0));
    });
    this.most = Math.max(...this.shares.flat());
    this.plane.setAttribute("aria-valuemax", given.step.length - 1);
    this.draw();
    this.#choose(this.#at);
  }

  #name(row) {
    return this.bin(row * this.together, (row + 1) * this.together - 1, this.given.edges);
  }

  draw() {
    const width = this.plane.clientWidth;
    if (!this.given || !width) return;
    const height = this.rows * ROW + AXIS,
      ratio = devicePixelRatio || 1,
      { canvas } = this,
      steps = this.given.step;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.height = `${height}px`;
    const draw = canvas.getContext("2d");
    draw.scale(ratio, ratio);
    draw.font = "11px system-ui, sans-serif";
    draw.textBaseline = "middle";
    const wide = (width - LABEL) / steps.length;
    for (let row = 0; row < this.rows; row += 1) {
      const y = (this.rows - 1 - row) * ROW;
      draw.fillStyle = colour("muted");
      draw.textAlign = "right";
      draw.fillText(this.#name(row), LABEL - 8, y + ROW / 2);
      draw.fillStyle = colour("raised");
      draw.fillRect(LABEL, y, width - LABEL, ROW - 1);
    }
    this.shares.forEach((shares, at) =>
      shares.forEach((share, row) => {
        if (share <= 0) return;
        draw.fillStyle = faint("accent", (0.08 + 0.92 * Math.sqrt(share / this.most)).toFixed(2));
        draw.fillRect(LABEL + at * wide, (this.rows - 1 - row) * ROW, Math.ceil(wide) - (wide > 6 ? 1 : 0), ROW - 1);
      }),
    );
    draw.fillStyle = colour("muted");
    for (let n = 0, marks = Math.max(2, Math.min(8, Math.floor((width - LABEL) / 80))); n < marks; n += 1) {
      const at = Math.round((n * (steps.length - 1)) / (marks - 1 || 1));
      draw.textAlign = n === 0 ? "left" : n === marks - 1 ? "right" : "center";
      draw.fillText(
        compact(steps[at]),
        n === 0 ? LABEL : n === marks - 1 ? width : LABEL + (at + 0.5) * wide,
        height - AXIS / 2 + 1,
      );
    }
    if (this.#at !== null) {
      draw.strokeStyle = colour("text");
      draw.strokeRect(LABEL + this.#at * wide + 0.5, 0.5, Math.max(1, wide - 1), height - AXIS - 1);
    }
  }

  #choose(at) {
    if (!this.given) return;
    this.#at = at === null ? null : Math.max(0, Math.min(this.given.step.length - 1, at));
    const shown = this.#at ?? this.given.step.length - 1,
      shares = this.shares[shown];
    const told = shares.map((share, row) => [share, this.#name(row)]);
    put(
      this.table,
      h("caption", {}, `Step ${whole(this.given.step[shown])}, share of ${this.of}`),
      h("thead", { class: "unseen" }, h("tr", {}, h("th", {}, "Bin"), h("th", {}, "Bar"), h("th", {}, "Share"))),
      h(
        "tbody",
        {},
        told
          .reverse()
          .map(([share, name]) =>
            h(
              "tr",
              {},
              h("th", { scope: "row", class: "num" }, name),
              h("td", { class: "amount" }, h("i", { share })),
              h("td", { class: "num" }, percent(share)),
            ),
          ),
      ),
    );
    this.plane.setAttribute("aria-valuenow", shown);
    this.plane.setAttribute(
      "aria-valuetext",
      `step ${whole(this.given.step[shown])}: ${told
        .filter(([share]) => share > 0)
        .map(([share, name]) => `${name} ${percent(share)}`)
        .join(", ")}`,
    );
    this.draw();
  }

  #point(event) {
    if (!this.given) return;
    const { left, width } = this.plane.getBoundingClientRect();
    const at = Math.floor(((event.clientX - left - LABEL) / (width - LABEL)) * this.given.step.length);
    if (at >= 0 && at !== this.#at) this.#choose(at);
  }

  #key(event) {
    const length = this.given?.step.length ?? 0,
      at = this.#at ?? length - 1,
      far = Math.max(1, Math.round(length / 10));
    const to = {
      ArrowLeft: at - 1,
      ArrowRight: at + 1,
      PageUp: at - far,
      PageDown: at + far,
      Home: 0,
      End: length - 1,
    }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.#choose(to);
  }
}

// What was read about once a second, below the lanes and in line with them: tokens a second, slots, streams, queues.

import { Chart } from "./chart.js";
import { Legend } from "./chart_card.js";
import { h, put } from "./dom.js";
import { compact, words } from "./format.js";
import { lineStyle } from "./palette.js";

const COUNTERS = new Set(["admitted", "trained", "dropped", "num_slots", "streams"]);
const TITLES = {
  tok_s: "Tokens a second",
  slots: "Slots",
  streams: "Streams",
  running: "Streams by engine",
  queue: "Waiting in queues",
};
const UNITS = { tok_s: "generated", streams: "open" };
const ORDER = ["tok_s", "slots", "streams", "running", "queue"];
/** What is drawn by step anyway. */
const LEFT_OUT = new Set(["at", "step", "version"]);

/** {group: [[name, label]]} of the gauges' names. */
function grouped(names) {
  const groups = {};
  for (const name of names) {
    const [, group, label] = name.match(/^([^.]+)\.(.+)$/) ?? [null, name, words(name)];
    if (group === "slots" && COUNTERS.has(label)) continue;
    (groups[group] ??= []).push([name, UNITS[name] ?? words(label)]);
  }
  return groups;
}

export class Gauges {
  #rows = new Map();

  /** `onZoom(from, to)` in unix seconds; `onReset()`; `yWidth()` of the column of names. */
  constructor({ onZoom, onReset, yWidth }) {
    Object.assign(this, { onZoom, onReset, yWidth });
    this.element = h("div", { class: "gauges" });
  }

  /** {at, name: values} of the server, in a window. */
  show(gauges, window) {
    const names = Object.keys(gauges ?? {}).filter((name) => !LEFT_OUT.has(name) && Array.isArray(gauges[name]));
    const groups = grouped(names),
      order = [...ORDER.filter((name) => groups[name]), ...Object.keys(groups).filter((name) => !ORDER.includes(name))];
    if (order.length === 0 && this.#rows.size === 0) return;
    if (order.length && order.join() !== [...this.#rows.keys()].join()) this.#make(order);
    for (const group of order) {
      const lines = groups[group].map(([name, label], n) => ({
        label,
        x: gauges.at,
        y: gauges[name],
        style: lineStyle(n),
      }));
      this.#rows.get(group).show({ lines, kind: "clock", range: window });
    }
  }

  #make(order) {
    this.destroy();
    put(
      this.element,
      order.map((group, n) => {
        const legend = new Legend(compact),
          plane = h("div"),
          title = TITLES[group] ?? words(group);
        const chart = new Chart(plane, {
          title,
          format: compact,
          height: n === order.length - 1 ? 88 : 68,
          xLabels: n === order.length - 1,
          yWidth: this.yWidth(),
          tight: true,
          sync: "gauges",
          onZoom: this.onZoom,
          onReset: this.onReset,
          onCursor: (index) => legend.set(chart.valuesAt(index)),
        });
        this.#rows.set(group, chart);
        return h("div", { class: "gauge" }, h("h2", {}, title), legend.element, plane);
      }),
    );
  }

  destroy() {
    for (const chart of this.#rows.values()) chart.destroy();
    this.#rows.clear();
  }
}

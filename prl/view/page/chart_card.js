// A chart in its frame: what it shows, its lines with the values under the cursor, and what it says when it has none.

import { Chart, X_KINDS } from "./chart.js";
import { colour } from "./palette.js";
import { empty, h, put, svg } from "./dom.js";
import { number } from "./format.js";

/** A piece of a line as the chart draws it. */
export function sample(style) {
  const line = svg("line", {
    x1: 0,
    y1: 4,
    x2: 18,
    y2: 4,
    "stroke-width": 2,
    stroke: colour(style.colour),
    "stroke-dasharray": style.dash.join(" "),
  });
  return svg("svg", { viewBox: "0 0 18 8", "aria-hidden": "true" }, line);
}

/** The list under a chart; `set(lines at the cursor, what x is there)`. */
export class Legend {
  element = h("ul", { class: "legend" });

  constructor(format = number) {
    this.format = format;
  }

  set(values, at = null) {
    put(
      this.element,
      values.map(({ label, line, value }) =>
        h("li", {}, sample(line.style), h("span", { class: "clip" }, label), h("b", {}, this.format(value))),
      ),
      at && h("li", { class: "at" }, at),
    );
  }
}

export class ChartCard {
  /** As Chart, with `about` what is shown, and `absent` what to say where nothing is. */
  constructor({ about = "", absent = "This run did not record it.", wide = false, ...options }) {
    this.absent = absent;
    this.kind = "step";
    this.legend = new Legend(options.format);
    this.plane = h("div");
    this.nothing = h("div", { hidden: true });
    this.element = h(
      "section",
      { class: wide ? "card wide" : "card", "aria-label": options.title },
      h("header", {}, h("h2", {}, options.title), h("span", { class: "about", title: about }, about)),
      this.legend.element,
      this.plane,
      this.nothing,
    );
    this.chart = new Chart(this.plane, { ...options, onCursor: (index) => this.#tell(index) });
  }

  /** As Chart.show. */
  show(shown) {
    const some = shown.lines.filter((line) => line.y.some((value) => value !== null && value !== undefined));
    this.kind = shown.kind ?? "step";
    this.plane.hidden = this.legend.element.hidden = some.length === 0;
    this.nothing.hidden = some.length > 0;
    put(this.nothing, some.length ? null : empty("Nothing to draw", this.absent));
    if (some.length) this.chart.show({ ...shown, lines: some });
    this.lines = some;
  }

  #tell(index) {
    if (!this.lines && index === null && !this.chart?.columns) return;
    const x = this.chart.columns[0];
    this.legend.set(this.chart.valuesAt(index), index === null ? null : X_KINDS[this.kind].said(x[index]));
  }

  destroy() {
    this.chart.destroy();
  }
}

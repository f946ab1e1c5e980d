// One chart of lines over a common x, on uPlot. It is a slider for those who do not see it or do not use a mouse: arrow
// keys move along x and the values there are said.

import uPlot from "./vendor/uPlot.esm.js";
import { colour, faint } from "./palette.js";
import { compact, duration, clock, number } from "./format.js";

const TIME_STEPS = [
  0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200,
  14400, 21600, 43200, 86400, 172800, 432000, 864000,
];

/** How an x is written: on the axis, and in words. */
export const X_KINDS = {
  step: { axis: compact, said: (x) => `step ${number(x)}`, steps: undefined },
  samples: { axis: compact, said: (x) => `${compact(x)} samples`, steps: undefined },
  at: { axis: duration, said: (x) => `after ${duration(x)}`, steps: TIME_STEPS },
  clock: {
    axis: (x, marks) => clock(x, marks[1] - marks[0] < 1),
    said: (x) => clock(x, true),
    steps: TIME_STEPS,
    space: 92,
  },
};

const HALF_LABEL = 26; // pixels of a clock time

export class Chart {
  #plot = null;
  #shape = "";
  #shown = null;
  #size = new ResizeObserver(() => this.#resize());
  #theme = () => this.#shown && this.show(this.#shown, true);

  /**
   * `element` becomes the chart. `sync`: charts of one name share the cursor. `onCursor(index | null)`. `onZoom(from,
   * to)` in x.
   * `onReset()` undoes it. `yWidth`: of the axis, so that charts stand in line with something else.
   */
  constructor(
    element,
    {
      title,
      format = number,
      axis = compact,
      sync = null,
      height = 190,
      yWidth = 48,
      tight = false,
      xLabels = true,
      onCursor = () => {},
      onZoom = null,
      onReset = null,
    },
  ) {
    Object.assign(this, {
      element,
      title,
      format,
      axis,
      sync,
      height,
      yWidth,
      tight,
      xLabels,
      onCursor,
      onZoom,
      onReset,
    });
    element.classList.add("chart");
    for (const [name, value] of [
      ["tabindex", "0"],
      ["role", "slider"],
      ["aria-label", title],
      ["aria-valuemin", 0],
      ["aria-valuemax", 0],
      ["aria-valuenow", 0],
    ]) {
      element.setAttribute(name, value);
    }
    element.addEventListener("keydown", (event) => this.#key(event));
    element.addEventListener("blur", () => this.#plot?.setCursor({ left: -10, top: -10 }));
    this.#size.observe(element);
    addEventListener("prl-theme", this.#theme);
  }

  destroy() {
    this.#size.disconnect();
    removeEventListener("prl-theme", this.#theme);
    this.#plot?.destroy();
  }

  /**
   * `lines`: [{label, x, y, style: {colour, dash}, min?, max?, raw?, points?}], with x of numbers that increase.
   * `kind` of X_KINDS.
   * `range`: [from, to] of x, or null for what there is.
   */
  show(shown, anew = false) {
    this.#shown = shown;
    const { lines, kind = "step", log = false, range = null } = shown;
    const [columns, series, bands] = this.#columns(lines, log);
    const shape = JSON.stringify([series.map((each) => each.label), bands.length, kind, log]);
    this.columns = columns;
    this.range = range;
    if (!anew && shape === this.#shape && this.#plot) {
      this.#plot.setData(columns);
    } else {
      this.#plot?.destroy();
      this.#shape = shape;
      this.#plot = new uPlot(this.#options(series, bands, X_KINDS[kind], log), columns, this.element);
      this.#plot.root.setAttribute("aria-hidden", "true");
    }
    const length = columns[0].length;
    this.element.setAttribute("aria-valuemax", Math.max(0, length - 1));
    this.#tell(this.#plot.cursor.idx ?? null);
  }

  #columns(lines, log) {
    const ok = (values) => (log ? values.map((value) => (value > 0 ? value : null)) : values);
    const tables = lines.map(({ x, y, min, max, raw }) => [
      x,
      ...(min ? [ok(min), ok(max)] : []),
      ...(raw ? [ok(raw)] : []),
      ok(y),
    ]);
    const same = lines.every((line) => line.x === lines[0].x);
    const columns = same ? [lines[0]?.x ?? [], ...tables.flatMap((table) => table.slice(1))] : uPlot.join(tables);
    const series = [{}],
      bands = [];
    for (const { label, style, min, raw, points = false } of lines) {
      if (min) {
        bands.push({ series: [series.length + 1, series.length], fill: faint(style.colour, 0.13) });
        for (const edge of ["least", "most"])
          series.push({
            label: `${label} ${edge}`,
            stroke: "transparent",
            width: 0,
            points: { show: false },
            spanGaps: true,
          });
      }
      if (raw)
        series.push({
          label: `${label} unsmoothed`,
          stroke: faint(style.colour, 0.3),
          width: 1,
          points: { show: false },
          spanGaps: true,
        });
      series.push({
        label,
        stroke: colour(style.colour),
        width: 1.6,
        dash: style.dash,
        spanGaps: true,
        main: true,
        points: { show: points || columns[0].length < 3, size: 6, fill: colour(style.colour) },
      });
    }
    return [columns, series, bands];
  }

  #options(series, bands, kind, log) {
    const axis = {
      stroke: colour("muted"),
      font: "11px system-ui, sans-serif",
      ticks: { show: false },
      grid: { stroke: colour("line"), width: 1 },
    };
    return {
      width: this.#width(),
      height: this.height,
      series,
      bands,
      legend: { show: false },
      padding: [8, this.tight ? 0 : 16, this.xLabels ? 0 : 7, 0],
      scales: {
        x: { time: false, range: (_, from, to) => this.range ?? (from === to ? [from - 1, to + 1] : [from, to]) },
        y: log ? { distr: 3 } : { range: (_, from, to) => padded(from, to) },
      },
      axes: [
        {
          ...axis,
          show: this.xLabels,
          size: 22,
          gap: 4,
          space: kind.space ?? 64,
          grid: { show: false },
          incrs: kind.steps,
          values: (plot, all) => all.map((x) => (this.#isCut(plot, x) ? "" : kind.axis(x, all))),
        },
        {
          ...axis,
          size: (_, marks) => (this.tight ? this.yWidth : Math.max(this.yWidth, ...(marks ?? []).map(wide))),
          gap: 6,
          space: 30,
          values: (_, all) => this.#marks(all),
        },
      ],
      cursor: {
        y: false,
        points: { size: 7, one: false, show: (plot, at) => (series[at].main ? undefined : false) },
        drag: { x: this.onZoom !== null, y: false, setScale: false },
        sync: this.sync ? { key: this.sync, setSeries: false, scales: ["x", null] } : undefined,
        bind: {
          dblclick: () => () => {
            this.onReset?.();
            return null;
          },
        },
      },
      hooks: {
        setCursor: [(plot) => this.#tell(plot.cursor.idx ?? null)],
        setSelect: [(plot) => this.#selected(plot)],
      },
    };
  }

  /** Whether what is written below this x would not be all within the chart. */
  #isCut(plot, x) {
    const { min, max } = plot.scales.x,
      width = plot.width - this.yWidth,
      at = ((x - min) / (max - min)) * width;
    return this.tight && (at < HALF_LABEL || at > width - HALF_LABEL);
  }

  /** What is written at the marks of the y axis: with more digits where fewer make two of them the same. */
  #marks(all) {
    const told = all.map((value) => (value === null ? "" : this.axis(value, all)));
    const same = new Set(told.filter(Boolean)).size < told.filter(Boolean).length;
    return same ? all.map((value) => (value === null ? "" : number(value, 6))) : told;
  }

  #selected(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    const from = plot.posToVal(left, "x"),
      to = plot.posToVal(left + width, "x");
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.onZoom?.(from, to);
  }

  #tell(index) {
    if (!this.#shown) return;
    this.onCursor(index);
    const x = this.columns[0],
      at = index ?? x.length - 1;
    if (at < 0) return this.element.setAttribute("aria-valuetext", "no values");
    const told = this.valuesAt(at).map(({ label, value }) => `${label} ${this.format(value)}`);
    this.element.setAttribute("aria-valuenow", at);
    this.element.setAttribute(
      "aria-valuetext",
      `${X_KINDS[this.#shown.kind ?? "step"].said(x[at])}: ${told.join(", ") || "no values"}`,
    );
  }

  /** [{label, value, line}] of the lines at an index of x; of null the last that each has. */
  valuesAt(index) {
    const told = [];
    let column = 0;
    for (const line of this.#shown.lines) {
      column += (line.min ? 2 : 0) + (line.raw ? 1 : 0) + 1;
      const values = this.columns[column];
      told.push({
        label: line.label,
        line,
        value:
          index === null
            ? (values.findLast((value) => value !== null && value !== undefined) ?? null)
            : (values[index] ?? null),
      });
    }
    return told;
  }

  #key(event) {
    const plot = this.#plot,
      x = this.columns?.[0];
    if (!plot || !x?.length || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = plot.cursor.idx ?? x.length - 1,
      far = Math.max(1, Math.round(x.length / 20));
    const moves = {
      ArrowLeft: at - 1,
      ArrowRight: at + 1,
      PageUp: at - far,
      PageDown: at + far,
      Home: 0,
      End: x.length - 1,
    };
    if (event.key in moves) {
      const to = Math.max(0, Math.min(x.length - 1, moves[event.key]));
      plot.setCursor({ left: plot.valToPos(x[to], "x"), top: 10 });
    } else if ((event.key === "+" || event.key === "-") && this.onZoom) {
      const { min, max } = plot.scales.x,
        half = ((max - min) / 2) * (event.key === "+" ? 0.5 : 2);
      this.onZoom(x[at] - half, x[at] + half);
    } else if ((event.key === "0" || event.key === "Escape") && this.onReset) {
      this.onReset();
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  #width() {
    const style = getComputedStyle(this.element);
    return Math.max(
      80,
      this.element.clientWidth - Number.parseFloat(style.paddingLeft) - Number.parseFloat(style.paddingRight),
    );
  }

  #resize() {
    if (this.#plot && this.element.clientWidth && this.#plot.width !== this.#width())
      this.#plot.setSize({ width: this.#width(), height: this.height });
  }
}

/** Pixels that a mark of the y axis takes, about. */
const wide = (text) => 10 + 6.2 * String(text).length;

function padded(from, to) {
  if (from === null || to === null) return [0, 1];
  // what differs by rounding alone is one value: an axis of steps below its numbers' precision would never end
  const size = Math.max(Math.abs(from), Math.abs(to)),
    span = to - from > 1e-6 * size ? to - from : size || 1;
  const pad = span * 0.08;
  return [from >= 0 && from - pad < 0 ? 0 : from - pad, to + pad];
}

// The lanes of engines and ranks in time. By mouse: drag to zoom, click to keep a span, the wheel once it has the focus
// (or with Ctrl at any time); by touch: drag to move; by keyboard: arrows go from span to span and from lane to lane.

import { h, say } from "./dom.js";
import { drawLanes, drawOverview, LANE } from "./timeline_draw.js";
import { TimelineLegend } from "./timeline_legend.js";

const MIN_WINDOW_S = 0.002;
const OVERVIEW = 22;
const HELP =
  "Timeline. Left and right go from span to span, up and down from lane to lane; plus and minus zoom, Enter zooms to the span, Shift with left and right moves, 0 shows all of it.";

export class Timeline {
  #picked = null;
  #kept = false;
  #frame = 0;
  #isMoved = false;
  #size = new ResizeObserver(() => this.draw());
  #theme = () => this.draw();
  data = { lanes: [], spans: [], begin: 0, end: 1 };
  window = [0, 1];
  marks = [];

  /** `onWindow([from, to])` when someone moved or zoomed. */
  constructor({ onWindow }) {
    this.onWindow = onWindow;
    this.legend = new TimelineLegend();
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.band = h("div", { class: "u-select", hidden: true });
    this.plane = h(
      "div",
      {
        class: "plane",
        tabindex: "0",
        role: "application",
        "aria-roledescription": "timeline",
        "aria-label": HELP,
        onkeydown: (event) => this.#key(event),
        onpointerdown: (event) => this.#down(event),
        onpointermove: (event) => this.#hover(event),
        onpointerleave: () => !this.#kept && this.#pick(null),
        ondblclick: () => this.all(),
      },
      this.canvas,
      this.band,
    );
    this.plane.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    this.strip = h("canvas");
    this.overview = h(
      "div",
      { class: "overview", "aria-hidden": "true", onpointerdown: (event) => this.#move(event) },
      this.strip,
    );
    this.lanes = h("div", { class: "lanes" }, this.legend.names, this.plane, this.overview);
    this.#size.observe(this.plane);
    addEventListener("prl-theme", this.#theme);
  }

  destroy() {
    cancelAnimationFrame(this.#frame);
    this.#size.disconnect();
    removeEventListener("prl-theme", this.#theme);
  }

  /** {lanes, spans, begin, end} of the server, and the part that is shown. */
  show(data, window) {
    this.data = data;
    this.window = window;
    if (this.#picked)
      this.#picked =
        data.spans.find(
          (span) =>
            span.lane === this.#picked.lane && span.start <= this.#picked.start && span.end > this.#picked.start,
        ) ?? null;
    this.legend.shares(data, window, this.#picked);
    this.legend.tell(this.#picked);
    this.draw();
  }

  draw() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      const width = this.plane.clientWidth;
      if (!width || !this.data.lanes.length) return;
      if (this.#isMoved) this.legend.shares(this.data, this.window, this.#picked);
      this.#isMoved = false;
      drawLanes(this.canvas, {
        width,
        lanes: this.data.lanes,
        spans: this.data.spans,
        window: this.window,
        picked: this.#picked,
      });
      drawOverview(this.strip, {
        width,
        height: OVERVIEW,
        begin: this.data.begin,
        end: this.data.end,
        window: this.window,
        marks: this.marks,
      });
      this.legend.draw();
    });
  }

  #pick(span, aloud = false) {
    if (span === this.#picked) return;
    this.#picked = span;
    this.legend.here(this.data.lanes, span);
    this.legend.tell(span);
    if (aloud && span) say(this.legend.told.textContent);
    this.draw();
  }

  // ---- moving and zooming -------------------------------------------------------------------------------------------

  /** Show this part, as near to it as there is anything. */
  to(from, to, told = true) {
    const { begin, end } = this.data,
      least = Math.max(MIN_WINDOW_S, to - from),
      long = Math.min(least, (end - begin) * 1.04 || 1);
    const low = Math.max(begin - long * 0.02, Math.min(from, end + long * 0.02 - long));
    this.window = [low, low + long];
    this.#isMoved = true;
    this.draw();
    if (told) this.onWindow(this.window);
  }

  all() {
    const pad = (this.data.end - this.data.begin) * 0.01;
    this.to(this.data.begin - pad, this.data.end + pad);
  }

  /** In (below 1) or out, around a time. */
  zoom(by, around = (this.window[0] + this.window[1]) / 2) {
    const [from, to] = this.window;
    this.to(around - (around - from) * by, around + (to - around) * by);
  }

  pan(share) {
    const [from, to] = this.window,
      by = (to - from) * share;
    this.to(from + by, to + by);
  }

  #time(event) {
    const { left, width } = this.plane.getBoundingClientRect();
    return this.window[0] + ((event.clientX - left) / width) * (this.window[1] - this.window[0]);
  }

  #at(event) {
    const lane = this.data.lanes[Math.floor((event.clientY - this.plane.getBoundingClientRect().top) / LANE)],
      time = this.#time(event);
    const slack = ((this.window[1] - this.window[0]) / this.plane.clientWidth) * 2;
    const near = this.data.spans.filter(
      (span) => span.lane === lane && span.start - slack <= time && span.end + slack >= time,
    );
    return near.find((span) => span.start <= time && span.end >= time) ?? near[0] ?? null;
  }

  #hover(event) {
    if (!this.#kept && event.pointerType === "mouse" && event.buttons === 0) this.#pick(this.#at(event));
  }

  #wheel(event) {
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey)
      this.pan((event.deltaX || event.deltaY) / 1000);
    else if (event.ctrlKey || document.activeElement === this.plane)
      this.zoom(Math.exp(event.deltaY / 400), this.#time(event));
    else return;
    event.preventDefault();
  }

  #down(event) {
    if (event.button !== 0) return;
    const x = event.clientX,
      start = this.#time(event),
      [from, to] = this.window,
      moves = event.pointerType !== "mouse" || event.shiftKey;
    const box = this.plane.getBoundingClientRect(),
      dragged = (now) => Math.abs(now.clientX - x) > 4;
    this.plane.setPointerCapture(event.pointerId);
    const move = (now) => {
      if (moves && dragged(now))
        this.to(
          from - ((now.clientX - x) / box.width) * (to - from),
          to - ((now.clientX - x) / box.width) * (to - from),
        );
      else if (!moves) {
        this.band.hidden = !dragged(now);
        this.band.style.setProperty("left", `${Math.min(x, now.clientX) - box.left}px`);
        this.band.style.setProperty("width", `${Math.abs(now.clientX - x)}px`);
        this.band.style.setProperty("height", `${this.data.lanes.length * LANE}px`);
      }
    };
    const up = (now) => {
      this.plane.removeEventListener("pointermove", move);
      this.band.hidden = true;
      if (!dragged(now)) {
        const found = this.#at(now);
        this.#kept = found !== null && !(this.#kept && found === this.#picked);
        this.#pick(found);
      } else if (!moves && now.type === "pointerup") {
        this.to(...[start, this.#time(now)].sort((a, b) => a - b));
      }
    };
    this.plane.addEventListener("pointermove", move);
    this.plane.addEventListener("pointerup", up, { once: true });
    this.plane.addEventListener("pointercancel", up, { once: true });
  }

  #move(event) {
    const box = this.overview.getBoundingClientRect(),
      long = this.window[1] - this.window[0];
    const centre = (now) => {
      const at = this.data.begin + ((now.clientX - box.left) / box.width) * (this.data.end - this.data.begin);
      this.to(at - long / 2, at + long / 2);
    };
    this.overview.setPointerCapture(event.pointerId);
    centre(event);
    this.overview.addEventListener("pointermove", centre);
    this.overview.addEventListener(
      "lostpointercapture",
      () => this.overview.removeEventListener("pointermove", centre),
      { once: true },
    );
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.data.lanes.length) return;
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key],
      over = { ArrowUp: -1, ArrowDown: 1 }[event.key],
      picked = this.#picked;
    if (by && event.shiftKey) this.pan(by * 0.2);
    else if (by) this.#beside(by);
    else if (over) this.#lane(over);
    else if (event.key === "+" || event.key === "=")
      this.zoom(
        0.5,
        picked ? (Math.max(picked.start, this.window[0]) + Math.min(picked.end, this.window[1])) / 2 : undefined,
      );
    else if (event.key === "-") this.zoom(2);
    else if (event.key === "0") this.all();
    else if (event.key === "Escape") {
      this.#kept = false;
      this.#pick(null);
    } else if (event.key === "Enter" && picked)
      this.to(picked.start - (picked.end - picked.start) * 0.2, picked.end + (picked.end - picked.start) * 0.2);
    else if (event.key === "Home") this.to(this.data.begin, this.data.begin + this.window[1] - this.window[0]);
    else if (event.key === "End") this.to(this.data.end - this.window[1] + this.window[0], this.data.end);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #of(lane) {
    return this.data.spans
      .filter((span) => span.lane === lane && span.end > this.window[0] && span.start < this.window[1])
      .sort((a, b) => a.start - b.start);
  }

  /** The span before or after in the same lane. */
  #beside(by) {
    this.#kept = true;
    const all = this.#of(this.#picked?.lane ?? this.data.lanes[0]),
      at = all.indexOf(this.#picked),
      next = at < 0 ? (by > 0 ? 0 : all.length - 1) : at + by;
    if (all[next]) this.#pick(all[next], true);
    else if (all.length) this.pan(by * 0.5);
  }

  /** What the lane above or below did at that time. */
  #lane(by) {
    this.#kept = true;
    const time = this.#picked
        ? (Math.max(this.#picked.start, this.window[0]) + Math.min(this.#picked.end, this.window[1])) / 2
        : this.window[0],
      { lanes } = this.data;
    for (
      let at = (this.#picked ? lanes.indexOf(this.#picked.lane) : by > 0 ? -1 : lanes.length) + by;
      at >= 0 && at < lanes.length;
      at += by
    ) {
      const found = this.#of(lanes[at]).reduce(
        (best, span) => (best === null || far(span, time) < far(best, time) ? span : best),
        null,
      );
      if (found) return this.#pick(found, true);
    }
  }
}

const far = (span, time) =>
  span.start <= time && span.end >= time ? 0 : Math.min(Math.abs(span.start - time), Math.abs(span.end - time));

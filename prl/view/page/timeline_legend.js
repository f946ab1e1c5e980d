// The words beside the lanes: their names with how busy each was, the states with their share, and what one span is.

import { h, put } from "./dom.js";
import { clock, duration, percent, whole } from "./format.js";
import { BUSY, fillState, STATES } from "./timeline_states.js";
import { sized } from "./timeline_draw.js";

const SWATCH = [22, 12];

/** A share as a whole percentage; what is there is never told as nothing. */
const part = (share, about) => (share < 0.005 ? `< ${percent(0.01, 0)}` : `${about}${percent(share, 0)}`);

export class TimelineLegend {
  names = h("ul", { "aria-label": "Lanes, with the share of the time that each was busy" });
  states = h("ul", { class: "states", "aria-label": "States, with their share of all lanes' time" });
  told = h("div", { class: "span-told" });

  /** How much of the shown time each state has, over all lanes and by lane. */
  shares({ spans, lanes }, [from, to], picked) {
    const all = new Map(),
      busy = new Map(),
      total = (to - from) * lanes.length;
    // spans that are too short to be drawn come as one, in the state that most of their time had
    const about = spans.some((span) => span.n > 1) ? "≈ " : "";
    for (const span of spans) {
      const seconds = (Math.min(to, span.end) - Math.max(from, span.start)) * (span.share ?? 1);
      if (seconds <= 0) continue;
      all.set(span.state, (all.get(span.state) ?? 0) + seconds);
      if (BUSY.has(span.state)) busy.set(span.lane, (busy.get(span.lane) ?? 0) + seconds);
    }
    const order = [
      ...Object.keys(STATES).filter((state) => all.has(state)),
      ...[...all.keys()].filter((state) => !(state in STATES)),
    ];
    put(
      this.states,
      order.map((state) =>
        h(
          "li",
          {},
          h("canvas", { "data-state": state, "aria-hidden": "true" }),
          state,
          h("b", {}, part(all.get(state) / total, about)),
        ),
      ),
      h("li", { class: "of" }, "of the time of all lanes"),
    );
    put(
      this.names,
      lanes.map((lane) =>
        h(
          "li",
          { title: lane },
          h("span", { class: "clip" }, lane),
          h("span", { class: "muted" }, percent(Math.min(1, (busy.get(lane) ?? 0) / (to - from)), 0)),
        ),
      ),
    );
    this.here(lanes, picked);
  }

  /** Draw what the states look like. */
  draw() {
    for (const swatch of this.states.querySelectorAll("canvas")) {
      const [draw, ratio] = sized(swatch, ...SWATCH);
      fillState(draw, swatch.dataset.state, 0, 0, ...SWATCH, ratio);
    }
  }

  /** Mark the lane of a span. */
  here(lanes, span) {
    [...this.names.children].forEach((name, n) => name.classList.toggle("here", lanes[n] === span?.lane));
  }

  /** What a span is; of null how to choose one. */
  tell(span) {
    if (!span)
      return put(
        this.told,
        h(
          "span",
          { class: "muted" },
          "Point at a span, or press an arrow key, to read what it is and why. Drag to zoom.",
        ),
      );
    const fine = span.end - span.start < 10,
      given = (value) => value !== null && value !== undefined;
    return put(
      this.told,
      h("span", {}, h("b", {}, span.state), ` · ${span.lane} `),
      h("span", {}, `${duration(span.end - span.start)} `),
      h("span", { class: "muted" }, `${clock(span.start, fine)} to ${clock(span.end, fine)} `),
      given(span.version) && h("span", { class: "muted" }, `weights ${span.version} `),
      given(span.step) && h("span", { class: "muted" }, `step ${span.step} `),
      span.n > 1 &&
        h(
          "span",
          { class: "muted" },
          `${whole(span.n)} short spans, ${percent(span.share ?? 1, 0)} of this time so: zoom in to see them `,
        ),
      span.why && h("span", {}, span.why),
    );
  }
}

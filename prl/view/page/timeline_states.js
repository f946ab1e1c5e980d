// What an engine or a rank may be doing: a word, a colour and a pattern each, so that no two differ by colour alone; and
// the order of their lanes.

import { colour } from "./palette.js";

/** In the order of the legend. Patterns: none, rise, fall, dots, bars, rows, cross. */
export const STATES = {
  generating: "none",
  training: "none",
  publishing: "rise",
  loading: "fall",
  paused: "bars",
  waiting: "dots",
  evaluating: "rows",
  saving: "rows",
  starts: "dots",
  gone: "cross",
};

/** States in which work is done. */
export const BUSY = new Set(["generating", "training", "publishing", "loading", "evaluating"]);

const MARKS = {
  rise: [
    [0, 8, 8, 0],
    [-2, 2, 2, -2],
    [6, 10, 10, 6],
  ],
  fall: [
    [0, 0, 8, 8],
    [-2, 6, 2, 10],
    [6, -2, 10, 2],
  ],
  bars: [
    [2, 0, 2, 8],
    [6, 0, 6, 8],
  ],
  rows: [
    [0, 2, 8, 2],
    [0, 6, 8, 6],
  ],
  cross: [
    [0, 8, 8, 0],
    [0, 0, 8, 8],
  ],
};
const cache = new Map();

addEventListener("prl-theme", () => cache.clear());

/** The colour of a state's ground. */
export const ground = (state) => colour(state in STATES ? `state-${state}` : "state-waiting");

/** A pattern for a canvas drawn at `ratio` device pixels, or null where a state has none. */
export function pattern(draw, state, ratio) {
  const marks = STATES[state] ?? "cross";
  if (marks === "none") return null;
  const key = `${marks} ${ratio}`;
  if (!cache.has(key)) {
    const tile = new OffscreenCanvas(8 * ratio, 8 * ratio),
      on = tile.getContext("2d");
    on.scale(ratio, ratio);
    on.strokeStyle = on.fillStyle = colour("state-hatch");
    on.lineWidth = 1.2;
    if (marks === "dots")
      for (const [x, y] of [
        [2, 2],
        [6, 6],
      ])
        on.fillRect(x - 0.7, y - 0.7, 1.5, 1.5);
    for (const [x1, y1, x2, y2] of MARKS[marks] ?? []) {
      on.beginPath();
      on.moveTo(x1, y1);
      on.lineTo(x2, y2);
      on.stroke();
    }
    const made = draw.createPattern(tile, "repeat");
    made.setTransform(new DOMMatrix().scale(1 / ratio));
    cache.set(key, made);
  }
  return cache.get(key);
}

/** Fill a rectangle as a state looks. */
export function fillState(draw, state, x, y, width, height, ratio) {
  draw.fillStyle = ground(state);
  draw.fillRect(x, y, width, height);
  const marks = width > 2 ? pattern(draw, state, ratio) : null;
  if (!marks) return;
  draw.fillStyle = marks;
  draw.fillRect(x, y, width, height);
}

const KINDS = ["engine", "trainer", "controller"];
const kindOf = (lane) => (KINDS.findIndex((kind) => lane.startsWith(kind)) + KINDS.length + 1) % (KINDS.length + 1);

/** Engines, then ranks, then the rest; engine-2 before engine-10. */
export const ordered = (lanes) =>
  [...lanes].sort((a, b) => kindOf(a) - kindOf(b) || a.localeCompare(b, "en", { numeric: true }));

// Spans to pixels. Only draws: what is shown is decided in timeline.js.

import { colour } from "./palette.js";
import { clock } from "./format.js";
import { fillState } from "./timeline_states.js";

export const LANE = 30;
const AXIS = 22,
  BLOCK = 22;
const TICKS = [
  0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200,
  14400, 43200, 86400,
];

/** Gives a canvas its size in device pixels; the context is scaled to CSS pixels. */
export function sized(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const draw = canvas.getContext("2d");
  draw.setTransform(ratio, 0, 0, ratio, 0, 0);
  draw.font = "11px system-ui, sans-serif";
  draw.textBaseline = "middle";
  return [draw, ratio];
}

/** The lanes. `window` [from, to] in unix seconds; `picked` the span that is chosen, or null. */
export function drawLanes(canvas, { width, lanes, spans, window, picked }) {
  const height = lanes.length * LANE + AXIS,
    [draw, ratio] = sized(canvas, width, height),
    [from, to] = window;
  const at = (time) => ((time - from) / (to - from)) * width;
  ticks(draw, from, to, at, height - AXIS);
  const row = new Map(lanes.map((lane, n) => [lane, n]));
  for (const span of spans) {
    if (span.end < from || span.start > to || !row.has(span.lane)) continue;
    const x = Math.max(-2, at(span.start)),
      wide = Math.max(1, Math.min(width + 2, at(span.end)) - x),
      y = row.get(span.lane) * LANE + (LANE - BLOCK) / 2;
    // many short spans as one: as high as the share of the time that they had
    const high = span.n > 1 ? Math.max(3, Math.round(BLOCK * (span.share ?? 1))) : BLOCK;
    if (high < BLOCK) {
      draw.fillStyle = colour("raised");
      draw.fillRect(x, y, wide, BLOCK - high);
    }
    fillState(draw, span.state, x, y + BLOCK - high, Math.max(1, wide - (wide > 4 ? 1 : 0)), high, ratio);
    if (wide > 34) label(draw, span, x, y, wide, width);
  }
  if (picked && row.has(picked.lane)) {
    const x = at(picked.start),
      y = row.get(picked.lane) * LANE + (LANE - BLOCK) / 2;
    draw.strokeStyle = colour("text");
    draw.lineWidth = 2;
    draw.strokeRect(x, y - 1, Math.max(3, at(picked.end) - x), BLOCK + 2);
  }
}

/** Words within a span, where there is room: its state, and of which weights or step. */
function label(draw, span, x, y, wide, width) {
  const left = Math.max(4, x + 6),
    room = Math.min(x + wide, width) - left - 4;
  const number = span.version ?? span.step,
    words = [number === null || number === undefined || span.n > 1 ? null : `${span.state} ${number}`, span.state];
  const text = words.find((each) => each && draw.measureText(each).width <= room);
  if (!text) return;
  const long = draw.measureText(text).width;
  draw.globalAlpha = 0.8;
  draw.fillStyle = colour(`state-${span.state}`) === "" ? colour("raised") : colour(`state-${span.state}`);
  draw.fillRect(left - 3, y + 3, long + 6, BLOCK - 6);
  draw.globalAlpha = 1;
  draw.fillStyle = colour("state-ink");
  draw.textAlign = "left";
  draw.fillText(text, left, y + BLOCK / 2 + 0.5);
}

function ticks(draw, from, to, at, bottom) {
  const wide = at(to) - at(from),
    gap = TICKS.find((each) => (each / (to - from)) * wide >= 92) ?? 86400 * Math.ceil((to - from) / 86400 / 6);
  draw.strokeStyle = colour("line");
  draw.fillStyle = colour("muted");
  draw.lineWidth = 1;
  draw.textAlign = "center";
  for (let time = Math.ceil(from / gap) * gap; time <= to; time += gap) {
    const x = Math.round(at(time)) + 0.5;
    draw.beginPath();
    draw.moveTo(x, 0);
    draw.lineTo(x, bottom + 3);
    draw.stroke();
    if (x > 24 && x < wide - 24) draw.fillText(clock(time, gap < 1), x, bottom + AXIS / 2 + 2);
  }
}

/** All of the recording in a strip, and which part of it is above. */
export function drawOverview(canvas, { width, height, begin, end, window, marks }) {
  const [draw] = sized(canvas, width, height),
    at = (time) => ((time - begin) / (end - begin || 1)) * width;
  draw.fillStyle = colour("raised");
  draw.fillRect(0, 6, width, height - 12);
  draw.fillStyle = colour("line-strong");
  for (const time of marks) draw.fillRect(at(time), 9, 1, height - 18);
  const x = at(Math.max(begin, window[0])),
    wide = Math.max(4, at(Math.min(end, window[1])) - x);
  draw.fillStyle = colour("accent-soft");
  draw.globalAlpha = 0.75;
  draw.fillRect(x, 3, wide, height - 6);
  draw.globalAlpha = 1;
  draw.strokeStyle = colour("accent");
  draw.lineWidth = 1.5;
  draw.strokeRect(x + 0.75, 3.75, wide - 1.5, height - 7.5);
}

// Who waits for whom: lanes in time with what was measured beside them, and where steps spend their time.

import { get, isStale, Latest } from "../api.js";
import { CurveControls } from "../curve_controls.js";
import { Curves } from "../curves.js";
import { empty, h, loading, put, say, settled, throttled, trouble } from "../dom.js";
import { Figures, meanOf } from "../figures.js";
import { compact, duration, number, percent, share, words } from "../format.js";
import { Gauges } from "../gauges.js";
import { Keys } from "../keys.js";
import { Timeline } from "../timeline.js";
import { ordered } from "../timeline_states.js";

const FOLLOWED_S = 60;
const UPDATE_STATES = new Set(["publishing", "loading", "paused"]);
const SHORT = { format: (value) => number(value, 3) };

const specsOf = (metrics) => [
  {
    title: "Goodput",
    about: "tokens trained in a step of those generated in it, or before",
    format: percent,
    axis: share,
    lines: [{ key: "goodput", label: "goodput" }],
  },
  {
    title: "Tokens a second",
    about: "over a step",
    ...SHORT,
    lines: [
      { key: "gen_tok_s", label: "generated" },
      { key: "train_tok_s", label: "trained" },
    ],
  },
  {
    title: "Busy",
    about: "share of a step's time",
    format: percent,
    axis: share,
    lines: [
      { key: "trainer_busy", label: "trainer" },
      { key: "engine_busy", label: "engines" },
    ],
  },
  {
    title: "Time in a step",
    about: "waiting for a batch, engines paused, weights sent",
    format: duration,
    axis: duration,
    lines: [
      { key: "time_s", label: "all" },
      { key: "wait_batch_s", label: "waiting" },
      { key: "pause_s", label: "paused" },
      { key: "publish_s", label: "sending" },
    ],
  },
  {
    title: "Dropped",
    about: "samples of a step, by reason",
    ...SHORT,
    noSmooth: true,
    absent: "No sample was dropped.",
    lines: metrics.filter((key) => key.startsWith("dropped_")).map((key) => ({ key, label: words(key.slice(8)) })),
  },
  {
    title: "Event loop",
    about: "longest time it was held up, ms",
    ...SHORT,
    lines: [{ key: "loop_lag_ms", label: "lag" }],
  },
];

const WAITS_FROM = 0.1; // of the time: less is the turn of a step

/** Who waits for whom, in the mean of the steps shown. */
function figures(answer, tiles) {
  const mean = (key) => meanOf(answer.series[key]),
    step = mean("time_s"),
    rate = (value) => (value === null ? "–" : compact(value)),
    generated = mean("tokens_generated"),
    idle = mean("engine_busy") === null ? 0 : 1 - mean("engine_busy"),
    paused = step ? (mean("pause_s") ?? 0) / step : 0,
    waits = step ? (mean("wait_batch_s") ?? 0) / step : 0;
  const who =
    Math.max(waits, idle) < WAITS_FROM
      ? ["nobody", `less than ${percent(WAITS_FROM, 0)} of the time`]
      : waits >= idle
        ? ["the trainer", `${percent(waits, 0)} of its time, for samples`]
        : ["the engines", `${percent(idle, 0)} of their time, ${paused > idle / 2 ? "for new weights" : "for slots"}`];
  tiles.set(
    ["Who waits", ...who],
    ["Engines busy", percent(mean("engine_busy"), 0), `${duration(mean("pause_s"))} paused a step`],
    ["Trainer busy", percent(mean("trainer_busy"), 0), `${duration(mean("wait_batch_s"))} waiting a step`],
    ["Step", duration(step), `${duration(mean("publish_s"))} sending weights`],
    ["Tokens a second", rate(mean("gen_tok_s")), `${rate(mean("train_tok_s"))} trained`],
    ["Goodput", generated ? percent(mean("tokens_trained") / generated) : "–", "trained of generated"],
  );
}

export function open(place) {
  const latest = new Latest(),
    query = place.query;
  let window =
    query.has("at") && query.has("for")
      ? [Number(query.get("at")), Number(query.get("at")) + Number(query.get("for"))]
      : null;
  let follow = window === null,
    update = null,
    have = null;

  const timeline = new Timeline({ onWindow: (shown) => moved(shown) });
  const gauges = new Gauges({
    onZoom: (from, to) => timeline.to(from, to),
    onReset: () => timeline.all(),
    yWidth: () => timeline.legend.names.clientWidth || 150,
  });
  const number_ = h("input", {
    type: "number",
    min: 1,
    step: 1,
    "aria-label": "Weight update",
    placeholder: "version",
    class: "version",
    onchange: (event) => event.target.value && toUpdate(Number(event.target.value)),
  });
  const following = h(
    "button",
    {
      type: "button",
      hidden: true,
      "aria-pressed": "true",
      onclick: () => {
        follow = !follow;
        showFollow();
        if (follow) latestPart();
      },
    },
    "Follow",
  );
  const small = (text, label, call) =>
    h("button", { type: "button", class: "square", "aria-label": label, title: label, onclick: call }, text);
  const bar = h(
    "div",
    { class: "toolbar", role: "group", "aria-label": "Part of the timeline" },
    h("button", { type: "button", onclick: () => timeline.all() }, "All"),
    small("+", "Zoom in", () => timeline.zoom(0.5)),
    small("−", "Zoom out", () => timeline.zoom(2)),
    small("‹", "Earlier", () => timeline.pan(-0.5)),
    small("›", "Later", () => timeline.pan(0.5)),
    following,
    h("span", { class: "spring" }),
    h("label", { class: "field" }, "Weight update", number_),
    small("[", "The update before", () => beside(-1)),
    small("]", "The update after", () => beside(1)),
  );
  const notice = h("div", {}, loading("Loading the timeline"));
  const card = h(
    "section",
    { class: "card", "aria-label": "Timeline", hidden: true },
    timeline.legend.states,
    timeline.lanes,
    timeline.legend.told,
    gauges.element,
  );
  const controls = new CurveControls({ ...place, onDraw: () => curves.draw(), onLoad: () => curves.load() });
  const curves = new Curves({
    settings: () => controls.settings(),
    onZoom: (from, to) => controls.zoom(from, to),
    onReset: () => controls.reset(),
    onAnswer: (answers) => figures(answers[0], tiles),
  });
  curves.needs = ["tokens_trained", "tokens_generated"];
  const tiles = new Figures();
  const element = h(
    "div",
    {},
    tiles.element,
    bar,
    notice,
    card,
    h("section", { class: "section" }, h("h2", {}, "By step"), controls.element, curves.notice, curves.element),
  );
  // a browser takes some addresses a second and no more: it is written once the hand rests
  const load = settled(() => {
    query.set("at", window[0].toFixed(4));
    query.set("for", (window[1] - window[0]).toFixed(4));
    place.change(query);
    fetchPart();
  }, 90);
  let frame = 0;

  function moved(shown) {
    follow = false;
    showFollow();
    window = shown;
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      gauges.show(have?.gauges, window);
    });
    card.classList.add("stale");
    load();
  }

  function showFollow() {
    following.hidden = place.info()?.state !== "live";
    following.setAttribute("aria-pressed", String(follow));
  }

  /** Where no part was chosen: the last minute of a live run, or all of one that has ended. */
  async function fetchPart() {
    const signal = latest.next(),
      live = place.info()?.state === "live",
      asked = follow ? null : window;
    try {
      const points = Math.max(300, Math.min(2000, timeline.plane.clientWidth || 1000)),
        ask = (of) =>
          get(
            [place.run, "timeline"],
            { from: of?.[0], to: of?.[1], recent: follow && live ? FOLLOWED_S : null, points, gauges: 1 },
            { signal, onIndexing: (share) => put(notice, loading("Reading the run", share)) },
          );
      const told = await ask(asked);
      if (told.begin === null || told.begin === undefined || !told.lanes.length) return nothing();
      if (follow && live) {
        window = [told.from, told.to];
      } else if (!asked) {
        window = [told.begin - (told.end - told.begin) * 0.01, told.end + (told.end - told.begin) * 0.01];
      }
      have = { ...told, lanes: ordered(told.lanes) };
      put(notice);
      card.hidden = bar.hidden = false;
      card.classList.remove("stale");
      timeline.show(have, window);
      gauges.show(have.gauges, window);
      showFollow();
    } catch (error) {
      if (isStale(error)) return;
      if (!have) put(notice, trouble(error, fetchPart));
    }
  }

  function nothing() {
    bar.hidden = card.hidden = true;
    put(
      notice,
      h(
        "div",
        { class: "card" },
        empty(
          "No timeline",
          place.info()?.state === "live"
            ? "Its first spans come with the first step."
            : "This run did not record one: runs of this version of prl do. What was measured by step is below.",
        ),
      ),
    );
  }

  function latestPart() {
    query.delete("at");
    query.delete("for");
    place.change(query);
    fetchPart();
  }

  /** The moments at which steps ended, for the strip. */
  async function marks() {
    try {
      const told = await get([place.run, "series"], { keys: "publish_s", x: "at", points: 300 });
      timeline.marks = told.x.filter((at) => at !== null);
      timeline.draw();
    } catch {
      timeline.marks = [];
    }
  }

  async function toUpdate(version) {
    try {
      const step = await get([place.run, "series"], { keys: "time_s", x: "at", from: version, to: version, points: 1 });
      if (!step.x.length || step.x[0] === null) return say(`There is no update to weights ${version}`);
      const about = (step.series.time_s?.mean[0] ?? 10) + 5;
      const near = await get([place.run, "timeline"], { from: step.x[0] - about, to: step.x[0] + about, points: 5000 });
      const spans = near.spans.filter((span) => span.version === version && UPDATE_STATES.has(span.state));
      const from = Math.min(step.x[0], ...spans.map((span) => span.start)),
        to = Math.max(...(spans.length ? spans.map((span) => span.end) : [step.x[0] + 1]));
      update = version;
      number_.value = version;
      timeline.to(from - (to - from) * 0.6, to + (to - from) * 0.6);
      say(`Update to weights ${version}: ${duration(to - from)}`);
    } catch (error) {
      if (!isStale(error)) say(error.message);
    }
  }

  function beside(by) {
    const shown = (have?.spans ?? [])
      .filter(
        (span) =>
          span.n === 1 &&
          (span.version ?? null) !== null &&
          UPDATE_STATES.has(span.state) &&
          span.start > window[0] &&
          span.end < window[1],
      )
      .map((span) => span.version);
    const last = place.info()?.step ?? 1;
    toUpdate(Math.max(1, Math.min(last, update === null ? (shown.at(by < 0 ? -1 : 0) ?? last) : update + by)));
  }

  const keys = new Keys(place.run, {
    onKeys: ({ metrics }) => curves.choose(specsOf(metrics)),
    onError: (error) =>
      put(
        curves.notice,
        trouble(error, () => keys.ask()),
      ),
  });

  const refresh = throttled(() => {
    if (follow || !have) fetchPart();
    marks();
  }, 1000);
  bar.hidden = true;
  fetchPart();
  marks();
  keys.ask();
  return {
    element,
    live: (kind) => {
      if (kind === "run") showFollow();
      if (kind === "step" || kind === "run") refresh();
      if (kind !== "step") return;
      keys.again();
      curves.refresh();
    },
    keys: [
      ["[", "The weight update before", () => beside(-1)],
      ["]", "The weight update after", () => beside(1)],
    ],
    close: () => {
      cancelAnimationFrame(frame);
      latest.stop();
      keys.close();
      load.stop();
      refresh.stop();
      timeline.destroy();
      gauges.destroy();
      curves.destroy();
    },
  };
}

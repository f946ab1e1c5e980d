// Is it on policy: how old the tokens are, what their ratios are, where the gap between engine and trainer comes from.

import { get, isStale, Latest } from "../api.js";
import { CurveControls } from "../curve_controls.js";
import { Curves } from "../curves.js";
import { empty, h, loading, put, throttled, trouble } from "../dom.js";
import { Figures, lastOf, meanOf } from "../figures.js";
import { number, percent, share } from "../format.js";
import { Spread } from "../spread.js";

const SHORT = { format: (value) => number(value, 3) };
const SPECS = [
  {
    title: "Effective sample size",
    about: "of the importance weights; 1 is on policy",
    ...SHORT,
    lines: [{ key: "ess", label: "ESS" }],
  },
  {
    title: "Lag",
    about: "optimiser steps behind, of tokens trained",
    ...SHORT,
    lines: [
      { key: "lag_mean", label: "mean" },
      { key: "lag_max", label: "most", own: true },
    ],
  },
  {
    title: "Log-probability gap",
    about: "|trainer − engine| a token, and what causes it",
    ...SHORT,
    lines: [
      { key: "gap_mean", label: "all of it" },
      { key: "gap_staleness", label: "staleness", own: true },
      { key: "gap_numerics", label: "numerics", own: true },
    ],
    absent: "This run did not record it: runs of this version of prl do.",
  },
  {
    title: "Clipped",
    about: "share of tokens whose ratio met the clip",
    format: percent,
    axis: share,
    lines: [{ key: "clip_frac", label: "clipped" }],
  },
  {
    title: "KL to the sampler",
    about: "of the weights that sampled",
    ...SHORT,
    lines: [{ key: "kl_behaviour", label: "KL" }],
  },
  {
    title: "Versions in a sample",
    about: "weight versions that wrote one completion, at most",
    ...SHORT,
    noSmooth: true,
    lines: [{ key: "versions_max", label: "versions" }],
  },
];

/** exp of the edges of log-ratio around a bin. */
function ratioBin(row, _, edges) {
  const ratio = (edge) => Math.exp(edge).toFixed(Math.abs(edge) < 0.02 ? 3 : 2);
  if (row === 0) return `< ${ratio(edges[0])}`;
  if (row >= edges.length) return `> ${ratio(edges.at(-1))}`;
  return `${ratio(edges[row - 1])}–${ratio(edges[row])}`;
}

const lagBin = (first, last) => (first === last ? `${first} step${first === 1 ? "" : "s"}` : `${first}–${last} steps`);

const NEAR = 0.0101; // in log-ratio: the edge at 0.01 and what rounding makes of it

/** Of the last row of counts, the share in bins that `isIn(bin)`; null where there is nothing. */
function shareOf({ counts }, isIn) {
  const last = counts.findLast((row) => row.some(Boolean)) ?? [],
    total = last.reduce((a, b) => a + b, 0);
  return total ? last.reduce((sum, count, bin) => (isIn(bin) ? sum + count : sum), 0) / total : null;
}

export function open(place) {
  const latest = new Latest();
  const controls = new CurveControls({
    ...place,
    onDraw: () => curves.draw(),
    onLoad: () => {
      curves.load();
      spreads();
    },
  });
  const curves = new Curves({
    settings: () => controls.settings(),
    onZoom: (from, to) => controls.zoom(from, to),
    onReset: () => controls.reset(),
    onAnswer: () => figures(),
  });
  const tiles = new Figures();
  let counts = null;
  const lag = new Spread({
    title: "Lag of tokens",
    about: "how many optimiser steps old the trained tokens were",
    of: "tokens",
    bin: lagBin,
  });
  const ratio = new Spread({
    title: "Importance ratio",
    about: "trainer's probability over the engine's, by token",
    of: "tokens",
    bin: ratioBin,
    least: 23,
  });
  const notice = h("div");
  const element = h(
    "div",
    {},
    tiles.element,
    controls.element,
    notice,
    h("div", { class: "stack" }, lag.element, ratio.element),
    h("div", { class: "section" }, curves.notice, curves.element),
  );

  /** Whether the newest step was on policy, in a few numbers. */
  function figures() {
    const answer = curves.answers?.[0];
    if (!answer || !counts) return;
    const of = (key) => answer.series[key],
      last = (key, digits = 3) => number(lastOf(of(key)), digits),
      mean = (key) => (meanOf(of(key)) === null ? null : `${number(meanOf(of(key)), 3)} in the mean`);
    const [lags, ratios] = counts,
      { edges } = ratios,
      isNear = (bin) => (edges[bin - 1] ?? -Infinity) >= -NEAR && (edges[bin] ?? Infinity) <= NEAR;
    const parts = ["numerics", "staleness"].filter((part) => lastOf(of(`gap_${part}`)) !== null);
    tiles.set(
      ["Effective sample size", last("ess"), mean("ess")],
      ["Lag", `${last("lag_mean", 2)} steps`, `${last("lag_max")} at most`],
      ["Tokens of no lag", percent(shareOf(lags, (bin) => bin === 0)), "by the weights that they train"],
      [`Ratio within 1${"\u2009"}%`, percent(shareOf(ratios, isNear)), "of the tokens"],
      ["Log-probability gap", last("gap_mean", 2), parts.map((part) => `${last(`gap_${part}`, 2)} ${part}`).join(", ")],
      ["Clipped", percent(lastOf(of("clip_frac"))), "of the tokens"],
    );
  }

  async function spreads() {
    const { from, to } = controls.settings(),
      signal = latest.next();
    try {
      const points = Math.max(60, Math.min(240, Math.round(element.clientWidth / 6)));
      const [lags, ratios] = await Promise.all(
        ["lag_histogram", "ratio_histogram"].map((key) =>
          get([place.run, "histograms"], { key, from, to, points }, { signal }),
        ),
      );
      put(notice);
      counts = [lags, ratios];
      figures();
      lag.show(lags, empty("No distribution of lags", "This run did not record it. Its mean and its most are below."));
      ratio.show(
        ratios,
        empty("No distribution of ratios", "This run did not record it. The effective sample size is below."),
      );
    } catch (error) {
      if (!isStale(error)) put(notice, trouble(error, spreads));
    }
  }

  const refresh = throttled(spreads, 3000);
  put(curves.notice, loading("Loading curves"));
  spreads();
  curves.choose(SPECS.map((spec) => ({ ...spec })));
  return {
    element,
    live: (kind) => {
      if (kind === "step") {
        curves.refresh();
        refresh();
      }
    },
    close: () => {
      latest.stop();
      refresh.stop();
      curves.destroy();
      lag.destroy();
      ratio.destroy();
    },
  };
}

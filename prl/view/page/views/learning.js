// Is it learning: rewards, held-out results, lengths, entropy, and what the optimiser does.

import { isStale } from "../api.js";
import { CurveControls } from "../curve_controls.js";
import { Curves } from "../curves.js";
import { h, loading, put, trouble } from "../dom.js";
import { compact, duration, number, percent, reward as rewardText, share, whole, words } from "../format.js";
import { Figures, firstOf, lastOf, meanOf } from "../figures.js";
import { evaluated, evaluationsOf, heldOut, ksOf, passAt } from "../held_out.js";
import { Keys } from "../keys.js";

const NUMBERS = { format: (value) => number(value, 3) };

/** The charts that a run with these keys has, and what is left of the keys. */
function chosen({ metrics, rewards }, ks) {
  const has = (key) => metrics.includes(key);
  const parts = rewards.map((name) => ({ key: `reward_${name}_mean`, label: name, own: true }));
  const specs = [
    {
      title: "Reward",
      about: "mean of the step's samples",
      wide: true,
      height: 230,
      ...NUMBERS,
      lines: [{ key: "reward_mean", label: "reward" }],
    },
    {
      title: "Held out",
      about: "pass@k and reward of evaluations",
      height: 230,
      ...NUMBERS,
      noSmooth: true,
      lines: [],
      extra: heldOut,
      absent: "No evaluation yet: eval.every says how often.",
    },
    ...ks.map(passAt),
    parts.length > 0 && { title: "Reward by part", about: "before weights", ...NUMBERS, lines: parts },
    {
      title: "Length",
      about: "tokens of a completion",
      ...NUMBERS,
      lines: [
        { key: "length_mean", label: "mean" },
        { key: "length_max", label: "longest", own: true },
      ],
    },
    {
      title: "Cut off",
      about: "share that met sampling.max_tokens",
      format: percent,
      axis: share,
      lines: [{ key: "finish_length_share", label: "cut off" }],
    },
    {
      title: "Entropy",
      about: "of the policy, nats a token",
      ...NUMBERS,
      lines: [{ key: "entropy", label: "entropy" }],
    },
    {
      title: "KL",
      about: "to the weights that sampled, and to the reference",
      ...NUMBERS,
      lines: [
        { key: "kl_behaviour", label: "behaviour" },
        { key: "kl_reference", label: "reference", own: true },
      ],
    },
    { title: "Gradient norm", about: "before clipping", ...NUMBERS, lines: [{ key: "grad_norm", label: "norm" }] },
    { title: "Learning rate", about: "of the step", ...NUMBERS, noSmooth: true, lines: [{ key: "lr", label: "rate" }] },
    { title: "Loss", about: "its value says little in RL", ...NUMBERS, lines: [{ key: "loss", label: "loss" }] },
  ].filter((spec) => spec && (spec.extra || spec.lines.some((line) => has(line.key))));
  const shown = new Set(specs.flatMap((spec) => spec.lines.map((line) => line.key)).concat("step"));
  return [specs, metrics.filter((key) => !shown.has(key))];
}

export function open(place) {
  const keys = new Keys(place.run, {
    onKeys: (told) => shown(told),
    onError: (error) =>
      put(
        curves.notice,
        trouble(error, () => keys.ask()),
      ),
  });
  const controls = new CurveControls({
    ...place,
    onDraw: () => {
      curves.draw();
      others.draw();
    },
    onLoad: () => load(),
  });
  const options = {
    settings: () => controls.settings(),
    onZoom: (from, to) => controls.zoom(from, to),
    onReset: () => controls.reset(),
    derive: (answer, run) => ({ ...answer, of: run }),
  };
  const curves = new Curves({ ...options, onAnswer: (answers) => figures(answers[0]) }),
    others = new Curves(options);
  curves.needs = ["tokens_trained", "tokens_generated", "samples", "time_s"];
  const tiles = new Figures(),
    count = h("span", { class: "muted" });
  const more = h(
    "details",
    { class: "section", ontoggle: () => more.open && showOthers() },
    h("summary", {}, "Everything else it measures ", count),
    others.notice,
    others.element,
  );
  const element = h("div", {}, tiles.element, controls.element, curves.notice, curves.element, more);
  let left = [],
    keysTold = null,
    ks = [];
  more.hidden = true;
  put(curves.notice, loading("Loading curves"));

  async function load() {
    try {
      await evaluated(controls.settings().runs);
      if (keysTold && ksOf(controls.settings().runs).join() !== ks.join()) return await shown(keysTold);
      await Promise.all([curves.load(), more.open && others.load()]);
    } catch (error) {
      if (!isStale(error)) put(curves.notice, trouble(error, load));
    }
  }

  async function shown(told) {
    keysTold = told;
    await evaluated(controls.settings().runs);
    ks = ksOf(controls.settings().runs);
    const [specs, rest] = chosen(told, ks);
    left = rest;
    more.hidden = left.length === 0;
    put(count, `(${left.length})`);
    await curves.choose(specs);
    if (more.open) showOthers();
  }

  function showOthers() {
    others.choose(
      left.map((key) => ({ title: words(key), about: "", height: 130, ...NUMBERS, lines: [{ key, label: "value" }] })),
    );
  }

  function figures(answer) {
    const info = place.info() ?? {},
      summary = info.summary,
      zoomed = controls.settings().from !== null;
    const of = (key) => answer.series[key],
      sum = (key) => (meanOf(of(key)) === null ? null : meanOf(of(key)) * answer.total);
    const reward = lastOf(of("reward_mean")),
      first = firstOf(of("reward_mean")),
      trained = sum("tokens_trained"),
      generated = sum("tokens_generated");
    const held = evaluationsOf(place.run),
      last = held.at(-1),
      firstHeld = held[0],
      heldOutText = (value) => rewardText(value, held.every((each) => each.is_accuracy));
    const part = zoomed ? "in the part shown" : null;
    tiles.set(
      ["Reward", number(reward, 3), answer.total > 1 && first !== null ? `from ${number(first, 3)}` : null],
      [
        "Held out",
        last ? heldOutText(last.reward_mean) : "–",
        last && firstHeld !== last ? `from ${heldOutText(firstHeld.reward_mean)}` : null,
        last?.interval ? `95 % interval ${heldOutText(last.interval[0])} to ${heldOutText(last.interval[1])}` : null,
      ],
      ["Steps", whole(answer.total), part ?? (info.num_steps ? `of ${whole(info.num_steps)}` : null)],
      ["Samples", compact(sum("samples")), part],
      ["Tokens trained", compact(trained), generated ? `of ${compact(generated)} generated` : null],
      ["Goodput", generated ? percent(trained / generated) : "–", "trained of generated"],
      [
        "Time",
        duration(summary && !zoomed ? summary.wall_s : sum("time_s")),
        sum("time_s") === null ? null : `${duration(meanOf(of("time_s")))} a step`,
      ],
    );
  }

  keys.ask();
  return {
    element,
    live: (kind) => {
      if (kind === "evaluation")
        evaluated(controls.settings().runs).then(
          () => curves.draw(),
          () => {},
        );
      if (kind === "run" && curves.answers) figures(curves.answers[0]);
      if (kind === "step") {
        keys.again();
        curves.refresh();
        if (more.open) others.refresh();
      }
    },
    close: () => {
      keys.close();
      curves.destroy();
      others.destroy();
    },
  };
}

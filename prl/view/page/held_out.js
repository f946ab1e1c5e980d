// What evaluations said, as lines of charts: the reward and pass@k of one run, or of several k by k.

import { get } from "./api.js";
import { number } from "./format.js";
import { lineStyle } from "./palette.js";

const evaluations = new Map();
const MAX_KS = 4;

/** What evaluations said of a run, as asked last. */
export const evaluationsOf = (run) => evaluations.get(run) ?? [];

/** Ask for those of these runs. One that ran out of time has the quick answers alone, and says nothing of the others. */
export async function evaluated(runs) {
  const whole = async (run) => (await get([run, "evaluations"])).filter((each) => each.complete !== false);
  await Promise.all(runs.map(async (run) => evaluations.set(run, await whole(run))));
}

/** The k of pass@k of these runs: at most so many, the largest among them. */
export function ksOf(runs) {
  const told = runs.flatMap(evaluationsOf).flatMap((each) => Object.keys(each.pass_at ?? {}));
  const ks = [...new Set(told)].sort((a, b) => a - b);
  return ks.length > MAX_KS ? [...ks.slice(0, MAX_KS - 1), ks.at(-1)] : ks;
}

/** Runs are compared k by k: with every k of each in one chart nothing could be told apart. */
export const passAt = (k) => ({
  title: `Held out, pass@${k}`,
  about: "of evaluations, with its interval",
  height: 230,
  format: (value) => number(value, 3),
  noSmooth: true,
  compared: true,
  lines: [],
  extra: (lines, answers, x) =>
    answers.forEach((answer, which) => {
      const told = evaluationsOf(answer.of).filter((each) => each.pass_at?.[k] !== undefined);
      if (told.length) lines.push(held(answer, x, told, answer.of, which, (each) => each.pass_at[k]));
    }),
});

/** The rewards of runs; of one run alone, its pass@k besides. */
export function heldOut(lines, answers, x) {
  const isAlone = answers.length === 1;
  answers.forEach((answer, which) => {
    const all = evaluationsOf(answer.of);
    if (!all.length) return;
    const reward = ({ reward_mean: mean, interval }) =>
      interval ? { mean, low: interval[0], high: interval[1] } : mean;
    lines.push(held(answer, x, all, isAlone ? "reward" : answer.of, which, reward));
    if (!isAlone) return;
    for (const k of ksOf([answer.of])) {
      const { label, style, x: at, y } = held(answer, x, all, `pass@${k}`, lines.length, (each) => each.pass_at?.[k]);
      lines.push({ label, style, x: at, y, points: true }); // with all their intervals no line would be seen
    }
  });
}

/** A line of evaluations; `of(evaluation)` is a number, or {mean, low, high}. */
function held(answer, x, told, label, style, of) {
  const all = told.map(of),
    line = { label, x: told.map((each) => placed(each.step, answer, x)), y: all.map(value), points: true };
  if (all.every((each) => typeof each?.low === "number" && typeof each.high === "number"))
    Object.assign(line, { min: all.map((each) => each.low), max: all.map((each) => each.high) });
  return { ...line, style: lineStyle(style) };
}

const value = (given) =>
  typeof given === "object" && given !== null ? (given.mean ?? given.value ?? null) : (given ?? null);

/** Where a step stands on an axis of time or samples. */
function placed(step, answer, x) {
  if (x === "step") return step;
  const at = answer.step.findIndex((each) => each >= step);
  return at < 0 ? (answer.x.at(-1) ?? 0) : answer.x[at];
}

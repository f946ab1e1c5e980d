// What stands for how much, in four ways of looking at tokens. Each step has a colour and an underline of its own, and
// numbers can be printed below every token. All pure.

import { number, percent } from "./format.js";

export const MODES = [
  ["version", "Version"],
  ["logprob", "Log-prob"],
  ["ratio", "Ratio"],
  ["advantage", "Advantage"],
  ["plain", "Plain"],
];

const PROBABILITY = [
  [0.9, "", "≥ 90 %"],
  [0.5, "amount-1", "50–90 %"],
  [0.1, "amount-2", "10–50 %"],
  [0.01, "amount-3", "1–10 %"],
  [0, "amount-4", "< 1 %"],
];
const RATIO = [
  [1.25, "plus-2", "≥ 1.25"],
  [1.05, "plus-1", "1.05–1.25"],
  [0.95, "", "0.95–1.05"],
  [0.8, "minus-1", "0.8–0.95"],
  [0, "minus-2", "< 0.8"],
];

const step = (scale, value) => scale.find(([from]) => value >= from) ?? scale.at(-1);
const given = (value) => value !== null && value !== undefined && Number.isFinite(value);

/** The numbers of token n of a sample: {id, version, logprob, ratio, advantage}, null where there is none. */
export function numbersOf(sample, n) {
  const logprob = sample.logprobs?.[n] ?? null,
    trained = sample.trained_logprobs?.[n] ?? null;
  const advantage = Array.isArray(sample.advantages) ? (sample.advantages[n] ?? null) : (sample.advantages ?? null);
  return {
    id: sample.token_ids?.[n] ?? null,
    version: sample.versions?.[n] ?? null,
    logprob,
    trained,
    advantage,
    ratio: given(logprob) && given(trained) ? Math.exp(trained - logprob) : null,
  };
}

/** Which of the modes a sample has numbers for. */
export function modesOf(sample) {
  const some = (values) => (Array.isArray(values) ? values.some(given) : given(values));
  const has = {
    version: some(sample.versions),
    logprob: some(sample.logprobs),
    ratio: some(sample.trained_logprobs) && some(sample.logprobs),
    advantage: some(sample.advantages),
    plain: true,
  };
  return MODES.filter(([mode]) => has[mode]);
}

/**
 * How tokens look in a mode: `look(n)` the class, `text(n)` the number below, `mark(n)` a label before the token or
 * null; `legend` [[class, words]]; `about` what it is.
 */
export function scaleOf(mode, sample) {
  if (mode === "version") return ofVersions(sample);
  if (mode === "logprob") {
    return {
      look: (n) => probability(sample.logprobs[n]),
      text: (n) => number(sample.logprobs[n], 3),
      mark: () => null,
      legend: PROBABILITY.map(([, look, words]) => [look, words]),
      about: "Probability that the engine gave the token",
    };
  }
  if (mode === "ratio") {
    const ratio = (n) => numbersOf(sample, n).ratio;
    return {
      look: (n) => (ratio(n) === null ? "" : step(RATIO, ratio(n))[1]),
      text: (n) => number(ratio(n), 3),
      mark: () => null,
      legend: RATIO.map(([, look, words]) => [look, words]),
      about: "Trainer's probability over the engine's",
    };
  }
  if (mode === "advantage") return ofAdvantages(sample);
  return { look: () => "", text: () => "", mark: () => null, legend: [], about: "" };
}

const probability = (logprob) => (given(logprob) ? step(PROBABILITY, Math.exp(logprob))[1] : "");

function ofVersions(sample) {
  const all = [...new Set(sample.versions)],
    which = new Map(all.map((version, n) => [version, n]));
  return {
    look: (n) => `version-${which.get(sample.versions[n]) % 6}`,
    text: (n) => String(sample.versions[n]),
    mark: (n) => (n === 0 || sample.versions[n] !== sample.versions[n - 1] ? `v${sample.versions[n]}` : null),
    legend: all.map((version, n) => [`version-${n % 6}`, `weights ${version}`]).slice(0, 12),
    about: "Weights that sampled the token",
  };
}

function ofAdvantages(sample) {
  const advantage = (n) => numbersOf(sample, n).advantage;
  const most = Math.max(...(sample.token_ids ?? []).map((_, n) => Math.abs(advantage(n) ?? 0)), 1e-12);
  const signed = (n) => (advantage(n) > 0 ? "plus" : "minus");
  return {
    look: (n) => (advantage(n) ? `${signed(n)}-${Math.abs(advantage(n)) > most / 2 ? 2 : 1}` : ""),
    text: (n) => `${advantage(n) > 0 ? "+" : ""}${number(advantage(n), 3)}`,
    mark: () => null,
    legend: [
      ["plus-2", `up to +${number(most, 3)}`],
      ["plus-1", `up to +${number(most / 2, 3)}`],
      ["", "0"],
      ["minus-1", `down to −${number(most / 2, 3)}`],
      ["minus-2", `down to −${number(most, 3)}`],
    ],
    about: "Advantage: what training made likelier, or less likely",
  };
}

/** All numbers of a token in words. */
export function told(sample, n, text) {
  const { id, version, logprob, trained, ratio, advantage } = numbersOf(sample, n);
  return [
    ["token", `${n + 1} of ${sample.token_ids?.length ?? "?"}`],
    ["text", JSON.stringify(text)],
    ["id", id],
    ["weights", version],
    ["log-prob", given(logprob) ? `${number(logprob, 4)} (${percent(Math.exp(logprob))})` : null],
    ["trainer", given(trained) ? number(trained, 4) : null],
    ["ratio", given(ratio) ? number(ratio, 4) : null],
    ["advantage", given(advantage) ? `${advantage > 0 ? "+" : ""}${number(advantage, 4)}` : null],
  ].filter(([, value]) => value !== null);
}

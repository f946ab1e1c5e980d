// How a run is: a sign and a word, so that colour is not all that says it.

import { h } from "./dom.js";

const STATES = {
  live: ["info beats", "●", "live"],
  completed: ["good", "✓", "completed"],
  stopped: ["", "❚❚", "stopped"],
  failed: ["bad", "✕", "failed"],
  killed: ["bad", "✕", "killed"],
};

/** The state of a run: a sign and a word. */
export function stateTag(state) {
  const [look, sign, text] = STATES[state] ?? ["", "·", state ?? "unknown"];
  return h(
    "span",
    { class: `tag ${look}` },
    h("span", { class: "sign", "aria-hidden": "true" }, sign),
    h("span", { class: "word" }, text),
  );
}

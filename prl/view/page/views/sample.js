// One sample: its reward with the parts and what they said, and its tokens or its conversation.

import { conversation } from "../conversation.js";
import { h, say } from "../dom.js";
import { number, whole } from "../format.js";
import { Tokens } from "../tokens.js";

let mode = "version",
  numbers = false;

const mean = (values) => {
  const known = (values ?? []).filter((value) => value !== null && value !== undefined);
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
};

/** The element of a sample; `address` is its permanent link. */
export function samplePane(sample, address) {
  const tokens = new Tokens(sample, {
    mode,
    numbers,
    onMode: (chosen) => {
      mode = chosen;
    },
    onNumbers: (shown) => {
      numbers = shown;
    },
  });
  const many = sample.messages?.length > 0,
    versions = [...new Set(sample.versions ?? [])];
  const body = many ? conversation(sample, tokens) : tokens.box();
  tokens.paint();
  const copy = h(
    "button",
    {
      type: "button",
      onclick: async () => {
        try {
          await navigator.clipboard.writeText(address);
          copy.textContent = "Copied";
        } catch {
          copy.textContent = "Copy it from the address bar";
        }
        say(copy.textContent);
      },
    },
    "Copy link",
  );
  const fact = (name, value, look = null) => h("div", {}, h("dt", {}, name), h("dd", { class: look }, value));
  return h(
    "article",
    { class: "card", "aria-label": `Member ${sample.member ?? ""}` },
    h(
      "div",
      { class: "title" },
      h("h2", {}, `Member ${sample.member ?? "–"}`),
      h("span", { class: "muted" }, many ? "a conversation" : "a completion"),
      h("span", { class: "spring" }),
      copy,
    ),
    h(
      "dl",
      { class: "reward" },
      fact("Reward", number(sample.reward, 4), "big"),
      fact("Finish", finish(sample.finish)),
      fact("Tokens", whole(sample.token_ids?.length)),
      fact("Weights", versions.length > 1 ? `${versions[0]} to ${versions.at(-1)}` : String(versions[0] ?? "–")),
      fact("Log-prob", number(mean(sample.logprobs), 3)),
    ),
    parts(sample),
    tokens.tools,
    body,
    sample.tokens
      ? null
      : h(
          "p",
          { class: "muted small" },
          "The tokenizer of this run cannot be loaded here: tokens are shown as their ids, and this is the text:",
        ),
    sample.tokens
      ? null
      : h("pre", { class: "prompt wrap", tabindex: "0", "aria-label": "Completion" }, sample.completion),
  );
}

const finish = (word) => ({ stop: "stop", length: "length: cut off", abort: "abort" })[word] ?? String(word ?? "–");

function parts(sample) {
  const names = Object.keys(sample.parts ?? {});
  if (!names.length) return null;
  return h(
    "div",
    { class: "parts" },
    h(
      "table",
      {},
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", { scope: "col" }, "Part"),
          h("th", { scope: "col", class: "num" }, "Value"),
          h("th", { scope: "col" }, "What it said"),
        ),
      ),
      h(
        "tbody",
        {},
        names.map((name) =>
          h(
            "tr",
            {},
            h("td", {}, name),
            h("td", { class: "num" }, sample.parts[name] === null ? "abstained" : number(sample.parts[name], 4)),
            h("td", { class: "wrap" }, sample.part_messages?.[name] ?? h("span", { class: "muted" }, "–")),
          ),
        ),
      ),
    ),
  );
}

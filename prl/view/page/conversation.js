// Many turns as they were said. What the model sampled is shown token by token, everything else as text.

import { h } from "./dom.js";

const said = (content) =>
  typeof content === "string"
    ? content
    : content === null || content === undefined
      ? ""
      : JSON.stringify(content, null, 1);

/** The messages of a sample; `tokens` makes the boxes of the turns that were sampled. */
export function conversation(sample, tokens) {
  const turns = [...(sample.turns ?? [])];
  const whole = turns.length === 0;
  const boxes = sample.messages.map((message) => {
    const turn = message.role === "assistant" ? turns.shift() : undefined;
    return h(
      "li",
      { class: `message ${["user", "assistant", "tool", "system"].includes(message.role) ? message.role : "other"}` },
      h(
        "header",
        {},
        h("b", {}, message.role ?? "message"),
        message.name && h("span", { class: "muted" }, message.name),
        turn && h("span", { class: "muted" }, `sampled, tokens ${turn[0] + 1} to ${turn[1]}`),
      ),
      turn ? tokens.box(turn[0], turn[1]) : said(message.content) && h("p", { class: "wrap" }, said(message.content)),
      (message.tool_calls ?? []).map((call) =>
        h(
          "pre",
          { class: "wrap call" },
          `${call.function?.name ?? call.name ?? "call"}(${said(call.function?.arguments ?? call.arguments)})`,
        ),
      ),
    );
  });
  const left = turns.map((turn) =>
    h(
      "li",
      { class: "message assistant" },
      h(
        "header",
        {},
        h("b", {}, "assistant"),
        h("span", { class: "muted" }, `sampled, tokens ${turn[0] + 1} to ${turn[1]}`),
      ),
      tokens.box(turn[0], turn[1]),
    ),
  );
  return h(
    "ol",
    { class: "conversation", "aria-label": "Conversation" },
    boxes,
    left,
    whole &&
      h(
        "li",
        { class: "message assistant" },
        h("header", {}, h("b", {}, "completion"), h("span", { class: "muted" }, "all that was sampled")),
        tokens.box(),
      ),
  );
}

// One of a few choices, side by side.

import { h } from "./dom.js";

/** One of a few, with arrow keys, as a group of radio buttons is. */
export function segments(label, choices, chosen, onChoose) {
  const buttons = choices.map(([value, text]) =>
    h("button", { type: "button", role: "radio", onclick: () => choose(value), "data-value": value }, text),
  );
  const show = (value) =>
    buttons.forEach((button) => {
      button.setAttribute("aria-checked", button.dataset.value === value);
      button.tabIndex = button.dataset.value === value ? 0 : -1;
    });
  const choose = (value) => {
    show(value);
    onChoose(value);
  };
  show(chosen);
  return h(
    "div",
    {
      class: "segments",
      role: "radiogroup",
      "aria-label": label,
      onkeydown: (event) => {
        const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        if (!by) return;
        event.preventDefault();
        event.stopPropagation();
        const next = buttons[(buttons.indexOf(document.activeElement) + by + buttons.length) % buttons.length];
        next.focus();
        choose(next.dataset.value);
      },
    },
    buttons,
  );
}

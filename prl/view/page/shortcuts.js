// Single keys, the list of them, and a switch for those whose input device sends keys that were not meant.

import { h } from "./dom.js";

const KEPT = "prl.keys";

export class Shortcuts {
  #all = [];

  /** `ofView()` -> [[key, text, call]] of what is open. */
  constructor(ofView) {
    this.ofView = ofView;
    document.addEventListener("keydown", (event) => this.#pressed(event));
  }

  add(key, text, call) {
    this.#all.push([key, text, call]);
  }

  #pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.target.closest?.("input:not([type=checkbox], [type=range]), select, textarea, dialog")) return;
    if (event.key === "?") this.show();
    else if (!on()) return;
    else {
      const found = [...this.ofView(), ...this.#all].find(([key]) => key === event.key);
      if (!found) return;
      found[2]();
    }
    event.preventDefault();
  }

  show() {
    if (document.querySelector("dialog.shortcuts")) return;
    const list = (all) =>
      h(
        "dl",
        {},
        all.map(([keys, text]) => [
          h(
            "dt",
            {},
            keys.split(" ").map((key) => [h("kbd", {}, key), " "]),
          ),
          h("dd", {}, text),
        ]),
      );
    const own = this.ofView();
    const dialog = h(
      "dialog",
      { class: "shortcuts", "aria-labelledby": "shortcuts-title", onclose: () => dialog.remove() },
      h("h2", { id: "shortcuts-title" }, "Keys"),
      list([...this.#all, ["?", "This list"]]),
      own.length > 0 && [h("h3", {}, "In this view"), list(own)],
      h("h3", {}, "On a chart"),
      list([
        ["← →", "Move along it; Page Up, Page Down, Home, End go further"],
        ["+ −", "Zoom"],
        ["0", "All of it"],
      ]),
      h(
        "div",
        { class: "dialog-foot" },
        h(
          "label",
          {},
          h("input", {
            type: "checkbox",
            checked: on(),
            onchange: (event) => localStorage.setItem(KEPT, event.target.checked ? "1" : "0"),
          }),
          "Single keys do something",
        ),
        h("button", { type: "button", onclick: () => dialog.close() }, "Close"),
      ),
    );
    document.body.append(dialog);
    dialog.showModal();
  }
}

function on() {
  try {
    return localStorage.getItem(KEPT) !== "0";
  } catch {
    return true;
  }
}

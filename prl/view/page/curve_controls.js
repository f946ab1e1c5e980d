// The row above curves: what x is, smoothing, log scale, the part that is shown, and which runs are beside this one.

import { compare } from "./compare.js";
import { h, put, say } from "./dom.js";
import { whole } from "./format.js";
import { segments } from "./segments.js";
import { curveSettings, keepCurveSetting } from "./settings.js";

const X = [
  ["step", "Step"],
  ["at", "Time"],
  ["samples", "Samples"],
];

/** Reads and writes the address' query of a place with curves. */
export class CurveControls {
  /** `place` has query and `change(query)`; `onDraw` where only the drawing changes, `onLoad` where data are needed. */
  constructor({ run, query, change, onDraw, onLoad, compare = true }) {
    Object.assign(this, { run, query, change, onDraw, onLoad });
    const { x, smooth, log } = curveSettings(query);
    const shown = h("output", {}, smooth ? smooth.toFixed(2) : "off");
    this.zoomed = h("span", { class: "chips" });
    this.others = h("span", { class: "chips" });
    this.element = h(
      "div",
      { class: "toolbar", role: "group", "aria-label": "How curves are drawn" },
      segments("Over", X, x, (value) => this.#set("x", value, "step", onLoad)),
      h(
        "label",
        { class: "field" },
        "Smoothing",
        h("input", {
          type: "range",
          min: 0,
          max: 0.99,
          step: 0.01,
          value: smooth,
          "aria-valuetext": shown.textContent,
          oninput: (event) => {
            const value = Number(event.target.value);
            shown.textContent = value ? value.toFixed(2) : "off";
            event.target.setAttribute("aria-valuetext", shown.textContent);
            this.#set("smooth", value, 0, onDraw);
          },
        }),
        shown,
      ),
      h(
        "label",
        { class: "field" },
        h("input", {
          type: "checkbox",
          checked: log,
          onchange: (event) => this.#set("log", event.target.checked ? 1 : 0, 0, onDraw),
        }),
        "Log scale",
      ),
      this.zoomed,
      h("span", { class: "spring" }),
      this.others,
      compare && h("button", { type: "button", onclick: () => this.#compare() }, "Compare …"),
    );
    this.#tell();
  }

  settings() {
    const { x, smooth, log } = curveSettings(this.query);
    const number = (name) => (this.query.has(name) ? Number(this.query.get(name)) : null);
    return { x, smooth, log, from: number("from"), to: number("to"), runs: [this.run, ...this.query.getAll("with")] };
  }

  zoom(from, to) {
    this.query.set("from", from);
    this.query.set("to", to);
    say(`Steps ${from} to ${to}`);
    this.#changed(this.onLoad);
  }

  reset() {
    if (!this.query.has("from") && !this.query.has("to")) return;
    this.query.delete("from");
    this.query.delete("to");
    say("All steps");
    this.#changed(this.onLoad);
  }

  #set(name, value, otherwise, then) {
    keepCurveSetting(name, value);
    if (String(value) === String(otherwise)) this.query.delete(name);
    else this.query.set(name, value);
    this.#changed(then);
  }

  #changed(then) {
    this.change(this.query);
    this.#tell();
    then();
  }

  #tell() {
    const { from, to, runs } = this.settings();
    put(
      this.zoomed,
      from !== null &&
        h(
          "button",
          { type: "button", title: "Show all steps (0)", onclick: () => this.reset() },
          `Steps ${whole(from)} – ${whole(to)}`,
          h("span", { "aria-hidden": "true" }, "×"),
          h("span", { class: "unseen" }, "show all steps"),
        ),
    );
    put(
      this.others,
      runs
        .slice(1)
        .map((run) =>
          h(
            "button",
            { type: "button", onclick: () => this.#leave(run) },
            h("span", { class: "clip" }, run),
            h("span", { "aria-hidden": "true" }, "×"),
            h("span", { class: "unseen" }, "take out of the comparison"),
          ),
        ),
    );
  }

  #leave(run) {
    const kept = this.query.getAll("with").filter((each) => each !== run);
    this.query.delete("with");
    for (const each of kept) this.query.append("with", each);
    this.#changed(this.onLoad);
  }

  #join(run) {
    this.query.append("with", run);
    this.#changed(this.onLoad);
  }

  #compare() {
    compare({
      run: this.run,
      chosen: () => this.query.getAll("with"),
      onChoice: (run, isChosen) => (isChosen ? this.#join(run) : this.#leave(run)),
    });
  }
}

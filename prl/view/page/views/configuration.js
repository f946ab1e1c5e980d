// The resolved configuration, with what differs from the defaults.

import { empty, h, put } from "../dom.js";
import { toml } from "../format.js";

export class Configuration {
  #all = [];

  constructor() {
    this.search = h("input", {
      type: "search",
      placeholder: "Filter keys",
      "aria-label": "Filter keys",
      oninput: () => this.#draw(),
    });
    this.only = h("input", { type: "checkbox", onchange: () => this.#draw() });
    this.list = h("div", { class: "scroll tall", tabindex: "0", role: "group", "aria-label": "Keys and values" });
    this.count = h("span", { class: "about" });
    this.element = h(
      "section",
      { class: "card padded config", "aria-label": "Configuration" },
      h("header", {}, h("h2", {}, "Configuration"), this.count),
      h(
        "div",
        { class: "toolbar" },
        this.search,
        h("label", { class: "field" }, this.only, "Only what differs from the defaults"),
      ),
      this.list,
    );
  }

  show(all) {
    this.#all = all ?? [];
    this.#draw();
  }

  #draw() {
    const asked = this.search.value.toLowerCase(),
      shown = this.#all.filter(
        (each) => (!this.only.checked || each.differs) && each.key.toLowerCase().includes(asked),
      );
    put(
      this.count,
      `${this.#all.filter((each) => each.differs).length} of ${this.#all.length} differ from the defaults`,
    );
    put(
      this.list,
      shown.length === 0
        ? empty(this.#all.length ? "No such key" : "No config.toml in this folder")
        : h(
            "table",
            {},
            h(
              "thead",
              {},
              h(
                "tr",
                {},
                ["Key", "Value", "Default"].map((text) => h("th", { scope: "col" }, text)),
              ),
            ),
            h(
              "tbody",
              {},
              shown.map((each) =>
                h(
                  "tr",
                  { class: each.differs ? "differs" : null },
                  h("td", {}, h("code", {}, each.key)),
                  h("td", {}, h("code", {}, toml(each.value))),
                  h("td", { class: "muted" }, each.differs ? h("code", {}, toml(each.default)) : "same"),
                ),
              ),
            ),
          ),
    );
  }
}

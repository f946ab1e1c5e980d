// One group: its prompt, its members, and the member that is looked at.

import { get } from "../api.js";
import { empty, h, loading, put, say, trouble } from "../dom.js";
import { number, whole } from "../format.js";
import { samplePane } from "./sample.js";

export class GroupPane {
  group = null;
  #told = null;
  #chosen = null;
  #refocus = false;

  /** `to(sample id)` goes there; `link(id)` is its address; `onGroup()` when another group is shown. */
  constructor({ run, to, link, onGroup }) {
    Object.assign(this, { run, to, link, onGroup });
    this.head = h("div");
    this.body = h("div");
    this.element = h("div", {}, this.head, this.body);
    this.nothing();
  }

  nothing() {
    this.group = this.#told = this.#chosen = null;
    put(
      this.head,
      h(
        "div",
        { class: "card" },
        empty("No group chosen", "Choose one from the list: arrow keys move in it, Enter opens."),
      ),
    );
    put(this.body);
    this.onGroup();
  }

  failed(error, again) {
    put(this.body, h("div", { class: "card" }, trouble(error, again)));
  }

  /** Its members as a table. */
  async open(group, signal) {
    this.#chosen = null;
    put(this.body);
    await this.#ask(group, signal);
    this.#show();
  }

  /** One sample, within its group. */
  async sample(id, signal) {
    if (this.#told === null) put(this.head);
    if (this.#chosen === null) put(this.body, h("div", { class: "card" }, loading("Loading the sample")));
    this.#chosen = String(id);
    const sample = await get([this.run, "samples", id], {}, { signal });
    if (sample.group !== null && sample.group !== undefined) await this.#ask(sample.group, signal);
    this.#show();
    const member = this.#told?.samples.find((each) => String(each.sample) === this.#chosen)?.member ?? null;
    put(
      this.body,
      samplePane({ ...sample, member: sample.member ?? member }, new URL(this.link(id), location.href).href),
    );
  }

  async #ask(group, signal) {
    if (String(group) === String(this.group) && this.#told) return;
    const told = await get([this.run, "groups", group], {}, { signal });
    this.group = group;
    this.#told = told;
    this.onGroup();
  }

  /** The next member, or the one before. */
  beside(by) {
    const all = this.#told?.samples ?? [],
      at = all.findIndex((each) => String(each.sample) === this.#chosen),
      next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : at + by];
    if (!next) return;
    this.to(next.sample);
    say(`member ${next.member}, reward ${number(next.reward, 3)}, ${next.finish}`);
  }

  #show() {
    const { step, prompt, prompt_id: number_, samples } = this.#told;
    put(
      this.head,
      h(
        "div",
        { class: "card" },
        h(
          "div",
          { class: "title" },
          h("h2", {}, `Prompt ${number_ ?? "–"}`),
          h(
            "span",
            { class: "muted" },
            `step ${whole(step)}, ${samples.length} completion${samples.length === 1 ? "" : "s"}`,
          ),
        ),
        h("pre", { class: "prompt wrap", tabindex: "0", "aria-label": "Prompt" }, prompt),
        this.#chosen === null ? this.#table(samples) : this.#strip(samples),
      ),
    );
    if (this.#refocus) this.head.querySelector(".members")?.focus();
    this.#refocus = false;
  }

  #table(samples) {
    return h(
      "div",
      { class: "previews" },
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ["Member", "Reward", "Finish", "Tokens"].map((text, n) =>
              h("th", { scope: "col", class: n === 2 ? null : "num" }, text),
            ),
            h("th", { scope: "col" }, "Completion"),
          ),
        ),
        h(
          "tbody",
          {},
          samples.map((each) =>
            h(
              "tr",
              {},
              h(
                "td",
                { class: "num" },
                h("a", { href: this.link(each.sample), "aria-label": `Member ${each.member}` }, String(each.member)),
              ),
              h("td", { class: "num" }, number(each.reward, 3)),
              h("td", {}, each.finish),
              h("td", { class: "num" }, whole(each.length)),
              h(
                "td",
                { class: "clip mono" },
                h("a", { href: this.link(each.sample), tabindex: "-1" }, each.preview || "(empty)"),
              ),
            ),
          ),
        ),
      ),
    );
  }

  #strip(samples) {
    const choose = (at) => samples[at] && this.to(samples[at].sample),
      chosen = samples.findIndex((each) => String(each.sample) === this.#chosen);
    const options = samples.map((each, n) =>
      h(
        "span",
        {
          role: "option",
          id: `member-${n}`,
          "aria-selected": String(n === chosen),
          title: each.preview,
          onclick: () => choose(n),
        },
        String(each.member),
        h("b", {}, number(each.reward, 3)),
        each.finish === "stop" ? null : each.finish,
      ),
    );
    return h(
      "div",
      {
        class: "members",
        role: "listbox",
        tabindex: "0",
        "aria-label": "Members with their rewards",
        "aria-activedescendant": chosen < 0 ? null : `member-${chosen}`,
        onkeydown: (event) => {
          const to = {
            ArrowLeft: chosen - 1,
            ArrowUp: chosen - 1,
            ArrowRight: chosen + 1,
            ArrowDown: chosen + 1,
            Home: 0,
            End: samples.length - 1,
          }[event.key];
          if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
          event.preventDefault();
          event.stopPropagation();
          this.#refocus = true;
          choose(to);
        },
      },
      options,
    );
  }
}

// Tokens as they were sampled, coloured in one of the ways of token_scales.js; the numbers of the one that is pointed
// at or reached with the arrow keys are shown above.

import { h, put, say } from "./dom.js";
import { segments } from "./segments.js";
import { modesOf, scaleOf, told } from "./token_scales.js";

let made = 0;

export class Tokens {
  #at = -1;
  #scale = null;

  /** `mode` as it was chosen last; `onMode(mode)`. */
  constructor(sample, { mode, numbers, onMode, onNumbers }) {
    Object.assign(this, { sample, onMode });
    this.id = `tokens-${(made += 1)}`;
    this.texts = sample.tokens ?? (sample.token_ids ?? []).map((id) => `⟨${id}⟩`);
    this.spans = [];
    this.boxes = [];
    const modes = modesOf(sample);
    this.mode = modes.some(([each]) => each === mode) ? mode : modes[0][0];
    this.legend = h("ul", { class: "token-legend" });
    this.told = h("div", { class: "token-told" });
    this.tools = h(
      "div",
      { class: "token-tools" },
      h(
        "div",
        { class: "toolbar" },
        segments("Colour tokens by", modes, this.mode, (chosen) => {
          this.mode = chosen;
          this.paint();
          this.onMode(chosen);
        }),
        h(
          "label",
          { class: "field" },
          h("input", {
            type: "checkbox",
            checked: numbers,
            onchange: (event) => {
              this.#numbers(event.target.checked);
              onNumbers(event.target.checked);
            },
          }),
          "Numbers",
        ),
        this.legend,
      ),
      this.told,
    );
    this.numbers = numbers;
  }

  /** The tokens from `start` to `end`, as a box; all boxes of a sample are painted together. */
  box(start = 0, end = this.texts.length) {
    const spans = [];
    for (let n = start; n < Math.min(end, this.texts.length); n += 1) {
      spans.push(
        h(
          "span",
          {
            class: "token",
            role: "option",
            id: `${this.id}-${n}`,
            "data-n": n,
            "aria-selected": "false",
            "aria-label": blank(this.texts[n]),
          },
          visible(this.texts[n]),
        ),
      );
      this.spans[n] = spans.at(-1);
    }
    const box = h(
      "div",
      {
        class: "tokens",
        tabindex: "0",
        role: "listbox",
        "aria-label": "Tokens; arrow keys move, what each has is said",
        onkeydown: (event) => this.#key(event, start, end),
        onpointerover: (event) => event.target.dataset?.n && this.#choose(Number(event.target.dataset.n)),
        onclick: (event) => event.target.dataset?.n && this.#choose(Number(event.target.dataset.n)),
        onfocus: () => (this.#at < start || this.#at >= end) && this.#choose(start, true),
      },
      spans.length ? spans : h("span", { role: "option", "aria-selected": "false", class: "muted" }, "no token"),
    );
    this.boxes.push(box);
    return box;
  }

  paint() {
    this.#scale = scaleOf(this.mode, this.sample);
    this.spans.forEach((span, n) => {
      span.className = `token ${this.#scale.look(n)}${n === this.#at ? " here" : ""}`;
      const mark = this.#scale.mark(n);
      if (mark) span.dataset.mark = mark;
      else delete span.dataset.mark;
      span.dataset.number = this.#scale.text(n);
    });
    this.#numbers(this.numbers);
    put(
      this.legend,
      this.#scale.about && h("li", { class: "muted" }, this.#scale.about),
      this.#scale.legend.map(([look, words]) =>
        h("li", {}, h("span", { class: `token ${look}`, "aria-hidden": "true" }, "ab"), words),
      ),
    );
    this.#tell();
  }

  #numbers(shown) {
    this.numbers = shown;
    for (const box of this.boxes) box.classList.toggle("numbered", shown && this.mode !== "plain");
  }

  #choose(n, aloud = false) {
    if (!this.spans[n]) return;
    for (const [at, on] of [
      [this.#at, false],
      [n, true],
    ]) {
      this.spans[at]?.classList.toggle("here", on);
      this.spans[at]?.setAttribute("aria-selected", String(on));
    }
    this.#at = n;
    this.spans[n].parentElement.setAttribute("aria-activedescendant", this.spans[n].id);
    this.#tell();
    if (!aloud) return;
    this.spans[n].scrollIntoView({ block: "nearest" });
    say(
      told(this.sample, n, this.texts[n])
        .map((each) => each.join(" "))
        .join(", "),
    );
  }

  #tell() {
    put(
      this.told,
      this.#at < 0
        ? h("p", { class: "muted" }, "Point at a token, or move with the arrow keys, to read its numbers")
        : h(
            "dl",
            {},
            told(this.sample, this.#at, this.texts[this.#at]).map(([name, value]) =>
              h("div", {}, h("dt", {}, name), h("dd", { class: name === "text" ? "mono" : null }, String(value))),
            ),
          ),
    );
  }

  #key(event, start, end) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const last = Math.min(end, this.texts.length) - 1;
    const to =
      { ArrowLeft: this.#at - 1, ArrowRight: this.#at + 1, Home: start, End: last }[event.key] ??
      { ArrowUp: this.#line(-1), ArrowDown: this.#line(1) }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    this.#choose(Math.max(start, Math.min(last, to)), true);
  }

  /** The token above or below. */
  #line(by) {
    const from = this.spans[this.#at]?.getBoundingClientRect();
    if (!from) return 0;
    for (let n = this.#at + by, best = null; ; n += by) {
      const box = this.spans[n]?.getBoundingClientRect();
      if (!box) return best ?? this.#at;
      if (Math.abs(box.top - from.top) < 4) continue;
      if (best !== null && Math.abs(box.top - this.spans[best].getBoundingClientRect().top) > 4) return best;
      if (
        best === null ||
        Math.abs(box.left - from.left) < Math.abs(this.spans[best].getBoundingClientRect().left - from.left)
      )
        best = n;
    }
  }
}

/** What a token that shows nothing is called. */
const blank = (text) =>
  text.trim()
    ? null
    : text === ""
      ? "nothing"
      : text.replaceAll(" ", "space ").replaceAll("\n", "new line ").replaceAll("\t", "tab ").trim();

/** A line's end is seen, and ends the line. */
const visible = (text) => (text === "" ? "∅" : text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥\t"));

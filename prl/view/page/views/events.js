// The events of a run, newest first, by level and words; older ones on demand.

import { get, isStale, Latest } from "../api.js";
import { empty, h, loading, put, settled, trouble } from "../dom.js";
import { clock, day, number } from "../format.js";

const PAGE = 100;
const MAX_SHOWN = 2000;
const LEVELS = [
  ["", "All levels"],
  ["info", "From information"],
  ["warning", "From warnings"],
  ["error", "Errors"],
];
const GRAVITY = ["debug", "info", "warning", "error", "critical"];
const SIGNS = { warning: ["warn", "!"], error: ["bad", "✕"], critical: ["bad", "✕"] };
const OWN = new Set(["time", "level", "event", "logger", "id"]);

const plain = (value) =>
  typeof value === "string" ? value : typeof value === "number" ? number(value) : JSON.stringify(value);

function line(event) {
  const at = Date.parse(event.time) / 1000,
    [look, sign] = SIGNS[event.level] ?? ["", null];
  const rest = Object.entries(event).filter(([name, value]) => !OWN.has(name) && value !== null && value !== undefined);
  return h(
    "li",
    { class: look },
    h("time", { datetime: event.time, title: day(at) }, clock(at)),
    sign
      ? h("span", { class: `tag ${look}` }, h("span", { class: "sign", "aria-hidden": "true" }, sign), event.level)
      : h("span"),
    h(
      "div",
      {},
      h("span", { class: "what" }, event.event),
      event.logger && h("span", { class: "muted" }, ` ${event.logger}`),
      rest.length > 0 &&
        h(
          "div",
          { class: "rest mono" },
          rest.map(([name, value]) => h("span", {}, h("span", { class: "muted" }, `${name}=`), plain(value))),
        ),
    ),
  );
}

export class Events {
  #latest = new Latest();
  #older = null;

  constructor(place) {
    this.place = place;
    const again = settled(() => this.load(), 250);
    this.again = again;
    this.level = h(
      "select",
      { "aria-label": "Level", onchange: () => this.load() },
      LEVELS.map(([value, text]) => h("option", { value }, text)),
    );
    this.search = h("input", {
      type: "search",
      placeholder: "Search events",
      "aria-label": "Search events",
      "data-search": "",
      oninput: again,
    });
    this.list = h("ol", { class: "events" });
    this.more = h("button", { type: "button", onclick: () => this.#more() }, "Older events");
    this.notice = h("div");
    this.element = h(
      "section",
      { class: "card padded", "aria-label": "Events" },
      h("header", {}, h("h2", {}, "Events"), h("span", { class: "about" }, "newest first")),
      h("div", { class: "toolbar" }, this.search, this.level),
      h(
        "div",
        { class: "scroll tall", tabindex: "0", role: "group", "aria-label": "List of events" },
        this.notice,
        this.list,
        this.more,
      ),
    );
    this.more.hidden = true;
  }

  #ask(after) {
    return get(
      [this.place.run, "events"],
      { order: "newest", after, limit: PAGE, level: this.level.value, q: this.search.value },
      { signal: this.#latest.next() },
    );
  }

  async load() {
    try {
      if (!this.list.children.length) put(this.notice, loading("Loading events"));
      const { events, next } = await this.#ask(null);
      put(this.list, events.map(line));
      put(
        this.notice,
        events.length
          ? null
          : empty(
              "No event",
              this.level.value || this.search.value ? "Widen the search." : "The run has not said anything yet.",
            ),
      );
      this.#rest(next);
    } catch (error) {
      if (!isStale(error))
        put(
          this.notice,
          trouble(error, () => this.load()),
        );
    }
  }

  async #more() {
    try {
      const { events, next } = await this.#ask(this.#older);
      this.list.append(...events.map(line));
      this.#rest(next);
    } catch (error) {
      if (!isStale(error))
        put(
          this.notice,
          trouble(error, () => this.#more()),
        );
    }
  }

  #rest(next) {
    this.#older = next ?? null;
    this.more.hidden = this.#older === null || this.list.children.length >= MAX_SHOWN;
  }

  /** One that has just happened. */
  add(event) {
    if (
      !event.event ||
      (this.level.value && GRAVITY.indexOf(event.level) < GRAVITY.indexOf(this.level.value)) ||
      (this.search.value && !JSON.stringify(event).toLowerCase().includes(this.search.value.toLowerCase()))
    )
      return;
    this.list.prepend(line(event));
    put(this.notice);
    if (this.list.children.length > MAX_SHOWN) this.list.lastChild.remove();
  }

  close() {
    this.again.stop();
    this.#latest.stop();
  }
}

// Header and tabs: which run this is, how it is, whether what is shown is still live.

import { get, isStale, Latest } from "./api.js";
import { h, put, say, svg, throttled } from "./dom.js";
import { clock, whole } from "./format.js";
import { Live } from "./live.js";
import { link, VIEWS } from "./router.js";
import { chosenTheme, nextTheme } from "./settings.js";
import { stateTag } from "./state_tag.js";

const CARRIED = ["x", "smooth", "log", "from", "to", "with"];
const THEME_SIGNS = { system: "◐", light: "☀", dark: "☾" };

export class Shell {
  #latest = new Latest();
  #live = null;
  #place = null;
  #wasLost = false;
  info = null;
  #again = throttled(() => this.#ask(), 2000);

  constructor(element, { titles, onHelp, onLive }) {
    Object.assign(this, { titles, onLive });
    this.name = h("h1", { class: "clip" });
    this.crumb = h("span", { class: "crumb", "aria-hidden": "true" }, "/");
    this.state = h("span");
    this.progress = h("span", { class: "progress" });
    this.themeButton = h("button", { class: "plain square", type: "button", onclick: () => this.theme(nextTheme()) });
    this.tabs = h("div", {
      class: "tabs",
      role: "tablist",
      "aria-label": "Views",
      onkeydown: (event) => this.#tabKey(event),
    });
    this.notice = h("div", { class: "gone", role: "status", hidden: true });
    const mark = svg(
      "svg",
      { viewBox: "0 0 32 32", "aria-hidden": "true" },
      svg("rect", { width: 32, height: 32, rx: 7, fill: "#2456c9" }),
      svg("path", {
        d: "M6 21h7V11h6v10h7",
        fill: "none",
        stroke: "#fff",
        "stroke-width": 3,
        "stroke-linecap": "round",
        "stroke-linejoin": "round",
      }),
    );
    put(
      element,
      h(
        "div",
        { class: "bar-top" },
        h("a", { class: "mark", href: "#/", "aria-label": "prl, all runs" }, mark, h("span", {}, "prl")),
        this.crumb,
        this.name,
        this.state,
        h("span", { class: "spring" }),
        this.progress,
        this.themeButton,
        h(
          "button",
          {
            class: "plain square keys-button",
            type: "button",
            title: "Keys (?)",
            "aria-label": "Keys",
            onclick: onHelp,
          },
          "?",
        ),
      ),
      this.tabs,
      this.notice,
    );
    this.theme(chosenTheme(), true);
  }

  theme(chosen, quiet = false) {
    put(this.themeButton, THEME_SIGNS[chosen]);
    this.themeButton.title = `Theme: ${chosen} (t)`;
    this.themeButton.setAttribute("aria-label", `Theme: ${chosen}`);
    if (!quiet) say(`Theme: ${chosen}`);
  }

  at(place) {
    const other = place.run !== this.#place?.run;
    this.#place = place;
    if (other) this.#changed();
    this.crumb.hidden = !place.run;
    put(this.name, place.run || "Runs");
    this.name.title = place.run;
    this.tabs.hidden = !place.run;
    if (!place.run) return;
    const before = this.tabs.contains(document.activeElement);
    put(
      this.tabs,
      VIEWS.map((view) =>
        h(
          "a",
          {
            role: "tab",
            id: `tab-${view}`,
            "aria-selected": String(view === place.view),
            tabindex: view === place.view ? 0 : -1,
            "aria-controls": view === place.view ? "panel" : null,
            href: link({ run: place.run, view, query: this.carried(place) }),
          },
          this.titles[view],
        ),
      ),
    );
    if (before) this.tabs.querySelector("[aria-selected=true]").focus();
  }

  /** What a place's query brings along to the other views. */
  carried(place) {
    return Object.fromEntries(
      CARRIED.filter((name) => place.query.has(name)).map((name) => [name, place.query.getAll(name)]),
    );
  }

  carry(place) {
    for (const tab of this.tabs.children)
      tab.href = link({ run: place.run, view: tab.id.slice(4), query: this.carried(place) });
  }

  #tabKey(event) {
    const all = [...this.tabs.children],
      at = all.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1 + all.length, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    all[to % all.length].focus();
    all[to % all.length].click();
  }

  #changed() {
    this.#latest.stop();
    this.#live?.close();
    this.#live = null;
    this.#again.stop();
    this.info = null;
    this.notice.hidden = true;
    put(this.state);
    put(this.progress);
    if (this.#place.run) this.#ask();
  }

  async #ask() {
    try {
      this.info = await get([this.#place.run, "run"], {}, { signal: this.#latest.next() });
    } catch (error) {
      if (!isStale(error)) put(this.state);
      return;
    }
    this.#show();
    this.onLive("run", this.info);
    if (this.info.state === "live" && !this.#live) {
      this.#live = new Live(this.#place.run, {
        onEvent: (kind, data) => this.#heard(kind, data),
        onState: (state, data) => this.#connection(state, data),
      });
    }
  }

  #show() {
    const { state, step, num_steps: steps } = this.info;
    put(this.state, stateTag(state));
    put(
      this.progress,
      step === null || step === undefined
        ? null
        : ["step ", h("b", {}, whole(step)), steps ? h("span", { class: "of" }, ` of ${whole(steps)}`) : null],
    );
  }

  #heard(kind, data) {
    this.heardAt = Date.now() / 1000;
    if (kind === "step" && this.info) {
      this.info.step = data.step ?? this.info.step;
      this.#show();
    }
    if (kind === "status" && data === null) return;
    if (kind === "status" && this.info) Object.assign(this.info, { status: data, why: data.why ?? null });
    this.onLive(kind, data);
  }

  #connection(state, data) {
    this.notice.hidden = state !== "lost";
    if (state === "live" && this.#wasLost) this.#again();
    this.#wasLost = state === "lost";
    if (state === "ended") {
      this.#live = null;
      say(`The run has ended: ${data.state ?? "see its events"}`);
      this.onLive("step", {});
      this.#again();
    }
    if (state === "lost") {
      const since = this.heardAt ? ` What is shown is from ${clock(this.heardAt)}.` : "";
      put(
        this.notice,
        data.failures < 4
          ? `The connection to the run is lost; trying again.${since}`
          : `The run's server does not answer any more: the run has ended, or its machine cannot be reached.${since} Start prl view with the run's folder to look at what it left.`,
      );
    }
  }
}

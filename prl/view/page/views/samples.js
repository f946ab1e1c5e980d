// What the answers look like: groups by step, reward, length and finish, and any one sample token by token.

import { get, isStale, Latest } from "../api.js";
import { empty, h, loading, put, settled, throttled, trouble } from "../dom.js";
import { number, whole } from "../format.js";
import { go, link } from "../router.js";
import { VirtualList } from "../virtual_list.js";
import { GroupPane } from "./group.js";

const SORTS = [
  ["step", "Step, first"],
  ["-step", "Step, last"],
  ["-reward", "Reward, best"],
  ["reward", "Reward, worst"],
  ["-length", "Length, longest"],
  ["length", "Length, shortest"],
];
const FILTERS = ["from", "to", "reward_min", "reward_max", "length_min", "length_max", "finish", "q", "sort"];
const RANGES = [
  ["Step", "from", "to", 1],
  ["Reward", "reward_min", "reward_max", "any"],
  ["Length", "length_min", "length_max", 1],
];
const REFRESH_MS = 3000;
const wide = matchMedia("(min-width: 861px)");

/** A group in two lines. */
function row(group) {
  const range = h("span", { class: "range", "aria-hidden": "true" }, h("i"), h("b")),
    low = Math.min(0, group.reward_min),
    span = Math.max(1, group.reward_max) - low;
  const place = (value) => `${(100 * Math.max(0, Math.min(1, (value - low) / span))).toFixed(1)}%`;
  range.style.setProperty("--low", place(group.reward_min));
  range.style.setProperty("--high", `calc(100% - ${place(group.reward_max)})`);
  range.style.setProperty("--mean", place(group.reward_mean));
  const cut = group.finish?.length ?? 0;
  return [
    h("div", { class: "first" }, h("span", { class: "clip" }, oneLine(group.prompt)), range),
    h(
      "div",
      { class: "second" },
      h("span", {}, `step ${whole(group.step)}`),
      h(
        "span",
        {},
        "reward ",
        h("b", {}, number(group.reward_mean, 3)),
        ` (${number(group.reward_min, 2)}–${number(group.reward_max, 2)})`,
      ),
      h("span", {}, `${whole(group.length_mean)} tokens`),
      cut > 0 && h("span", {}, `${cut} cut`),
    ),
  ];
}

/** A prompt's words without the marks of its chat template. */
const oneLine = (text) =>
  text
    .replace(/<\|[a-z_]+\|>(?:(?:user|system|assistant)\n)?/g, " ")
    .replace(/\s+/g, " ")
    .trim() || text;

export function open(first) {
  const latest = new Latest();
  let place = first,
    finishes = [],
    isAll = true;
  const query = () => place.query;
  const filters = () => Object.fromEntries(FILTERS.map((name) => [name, query().get(name)]));
  const count = h("span", {}, "Groups"),
    root = h("div", { class: "samples-view" }),
    filterBar = h("div", { class: "filters", role: "search" });

  const list = new VirtualList({
    label: "Groups",
    height: 60,
    row,
    fetch: async (offset, limit, signal) => {
      const told = await get(
        [place.run, "groups"],
        { ...filters(), sort: query().get("sort") ?? "step", offset, limit },
        {
          signal,
          onIndexing: (share) =>
            put(list.note, loading("Reading the samples of this run; once", share)) && (list.note.hidden = false),
        },
      );
      put(list.note).hidden = true;
      isAll = told.is_all_counted !== false;
      if (told.finishes?.join() !== finishes.join() && told.finishes) {
        finishes = told.finishes;
        showFilters();
      }
      return { total: told.total, rows: told.groups };
    },
    onChoose: (group) => go({ run: place.run, view: "samples", query: { ...kept(), group: group.group } }),
    isChosen: (group) => String(group.group) === String(pane.group),
    onTotal: (total) => put(count, total === 1 ? "1 group" : `${isAll ? "" : "at least "}${whole(total)} groups`),
    onError: (error) => {
      list.note.hidden = false;
      put(
        list.note,
        trouble(error, () => list.reset()),
      );
    },
    nothing: () =>
      filtered()
        ? h(
            "div",
            {},
            empty("No group like that", "Widen the filters."),
            h("p", { class: "empty" }, h("button", { type: "button", onclick: clear }, "Clear the filters")),
          )
        : empty(
            "No sample yet",
            "A run keeps the completions of every run.samples_every-th step once that step is done.",
          ),
  });
  const pane = new GroupPane({
    run: place.run,
    to: (id) => go({ run: place.run, view: "samples", id, query: kept() }),
    link: (id) => link({ run: place.run, view: "samples", id, query: {} }),
    onGroup: () => list.redraw(),
  });
  const back = h(
    "button",
    {
      type: "button",
      class: "back",
      onclick: () => go({ run: place.run, view: "samples", query: { ...kept(), group: null } }),
    },
    "‹ All groups",
  );
  const columns = h(
    "div",
    { class: "samples" },
    h(
      "section",
      { class: "side card", "aria-label": "Groups" },
      h("div", { class: "count" }, count),
      list.note,
      list.element,
    ),
    h("section", { class: "detail", "aria-label": "Group and sample" }, back, pane.element),
  );
  put(root, filterBar, columns);

  /** What of the query goes along from sample to sample. */
  function kept() {
    return Object.fromEntries(
      [...new Set(query().keys())].filter((name) => name !== "group").map((name) => [name, query().getAll(name)]),
    );
  }

  const filtered = () => FILTERS.some((name) => name !== "sort" && query().has(name));

  function set(name, value) {
    if (value === "" || (name === "sort" && value === "step")) query().delete(name);
    else query().set(name, value);
    place.change(query());
    narrowed();
  }

  function clear() {
    for (const name of FILTERS) query().delete(name);
    place.change(query());
    showFilters();
    list.reset();
  }

  const narrowed = settled(() => list.reset(), 250),
    refresh = throttled(() => list.refresh(), REFRESH_MS);

  function showFilters() {
    const value = (name) => query().get(name) ?? "",
      words = finishes.length ? finishes : ["stop", "length"];
    const search = h("input", {
      type: "search",
      placeholder: "Search prompts and completions",
      "aria-label": "Search prompts and completions",
      "data-search": "",
      value: value("q"),
      oninput: (event) => set("q", event.target.value),
    });
    const number_ = (name, label, step) =>
      h("input", {
        type: "number",
        step,
        "aria-label": label,
        value: value(name),
        oninput: (event) => set(name, event.target.value),
      });
    put(
      filterBar,
      h("div", { class: "search" }, search),
      h(
        "label",
        { class: "field" },
        "Sort",
        h(
          "select",
          { onchange: (event) => set("sort", event.target.value) },
          SORTS.map(([key, text]) => h("option", { value: key, selected: key === (value("sort") || "step") }, text)),
        ),
      ),
      h(
        "details",
        { open: wide.matches || filtered() },
        h("summary", {}, "Filter"),
        h(
          "div",
          { class: "more" },
          RANGES.map(([text, low, high, step]) =>
            h(
              "span",
              { class: "between" },
              text,
              number_(low, `${text} from`, step),
              "to",
              number_(high, `${text} to`, step),
            ),
          ),
          h(
            "label",
            { class: "field" },
            "Finish",
            h(
              "select",
              { onchange: (event) => set("finish", event.target.value) },
              h("option", { value: "" }, "any"),
              words.map((word) => h("option", { value: word, selected: word === value("finish") }, word)),
            ),
          ),
          h("button", { type: "button", class: "plain", onclick: clear }, "Clear"),
        ),
      ),
    );
  }

  async function shown() {
    const chosen = place.id !== null || query().has("group");
    columns.classList.toggle("chosen", chosen);
    root.classList.toggle("chosen", chosen);
    try {
      if (place.id !== null) await pane.sample(place.id, latest.next());
      else if (query().has("group")) await pane.open(query().get("group"), latest.next());
      else pane.nothing();
    } catch (error) {
      if (!isStale(error)) pane.failed(error, shown);
    }
  }

  async function start() {
    showFilters();
    put(list.note, loading("Loading groups"));
    list.note.hidden = false;
    shown();
    await list.reset();
    const newest = list.item(0);
    if (wide.matches && newest && place.id === null && !query().has("group")) {
      query().set("group", newest.group);
      place.change(query());
      shown();
    }
  }

  start();
  return {
    element: root,
    moved: (to) => {
      place = to;
      shown();
    },
    live: (kind) => {
      if (kind === "step") refresh();
    },
    keys: [
      ["j", "The next sample of the group", () => pane.beside(1)],
      ["k", "The sample before", () => pane.beside(-1)],
      ["n", "The next group", () => list.choose(list.active + 1)],
      ["p", "The group before", () => list.choose(list.active - 1)],
    ],
    close: () => {
      latest.stop();
      narrowed.stop();
      refresh.stop();
      list.destroy();
    },
  };
}

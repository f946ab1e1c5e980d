// What this run is: how it stands, who waits for whom, its configuration against the defaults, versions, events.

import { get, isStale, Latest } from "../api.js";
import { empty, h, loading, put, trouble } from "../dom.js";
import { duration, number, whole, words } from "../format.js";
import { Configuration } from "./configuration.js";
import { Events } from "./events.js";

/** `a <- b <- c` as a list, the one that has to move last. */
function chain(why) {
  const links = why.split(" <- ");
  return h(
    "ol",
    { class: "chain", "aria-label": "Who waits for whom" },
    links.map((text, n) =>
      h(
        "li",
        {},
        n > 0 && h("span", { class: "muted", "aria-hidden": "true" }, "← "),
        n > 0 && h("span", { class: "unseen" }, "waits for "),
        text,
      ),
    ),
  );
}

const card = (title, about, ...children) =>
  h(
    "section",
    { class: "card padded", "aria-label": title },
    h("header", {}, h("h2", {}, title), about && h("span", { class: "about" }, about)),
    children,
  );
const pairs = (all) =>
  h(
    "dl",
    { class: "pairs" },
    all
      .filter(([, value]) => value !== null && value !== undefined)
      .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
const facts = (all) =>
  h(
    "dl",
    { class: "facts" },
    all.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
const plain = (value) =>
  typeof value === "number"
    ? number(value)
    : typeof value === "object" && value !== null
      ? JSON.stringify(value)
      : String(value);

function standing(info) {
  const { status, summary } = info,
    slots = status?.slots;
  return [
    status &&
      card(
        "Now",
        null,
        pairs([
          ["stage", `${status.stage}, for ${duration(status.stage_s)}`],
          ["weights", status.version === null ? "none yet" : String(status.version)],
          [
            "trainer",
            status.trainer
              ? `${status.trainer.state}${status.trainer.restarts ? `, started again ${status.trainer.restarts} times` : ""}`
              : null,
          ],
          [
            "slots",
            slots
              ? `${slots.running} running, ${slots.finished} finished, ${slots.taken} taken, of ${slots.num_slots}`
              : null,
          ],
          ["process", `${status.pid}`],
          ["folder", status.run_dir],
        ]),
        engines(status.engines),
      ),
    status &&
      card(
        "Waiting",
        "who waits for whom, the last has to move",
        info.why ? chain(info.why) : h("p", { class: "muted" }, "Nothing waits."),
      ),
    !status && info.why && card("Why it stands still", null, chain(info.why)),
    summary &&
      card(
        "Summary",
        "summary.json",
        summary.error && h("p", { class: "error wrap" }, summary.error),
        facts(
          Object.entries(summary)
            .filter(([name]) => name !== "error")
            .map(([name, value]) =>
              name === "wall_s" ? ["wall time", duration(value)] : [words(name), value === null ? "–" : plain(value)],
            ),
        ),
      ),
    !status &&
      !summary &&
      card(
        "Standing",
        null,
        empty(
          "No summary",
          "The run has not written one: it goes on, or it was killed. prl why RUN says more, and prl run --resume goes on.",
        ),
      ),
  ];
}

function engines(all) {
  if (!all?.length) return null;
  const names = [...new Set(all.flatMap((each) => Object.keys(each)))].slice(0, 7);
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "group", "aria-label": "Engines" },
    h(
      "table",
      {},
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          names.map((name) => h("th", { scope: "col" }, words(name))),
        ),
      ),
      h(
        "tbody",
        {},
        all.map((each) =>
          h(
            "tr",
            {},
            names.map((name) => h("td", {}, each[name] === null || each[name] === undefined ? "–" : plain(each[name]))),
          ),
        ),
      ),
    ),
  );
}

/** {kind, name, ...} in words. */
function deviceName({ name, ...rest }) {
  const told = Object.entries(rest).map(([key, value]) =>
    key === "kind" ? String(value) : `${words(key)} ${plain(value)}`,
  );
  return [name, ...told].filter(Boolean).join(", ");
}

/** Lines of its files that could not be read. */
function skipped(told) {
  const all = Object.entries(told ?? {});
  return (
    all.length > 0 &&
    card("Passed over", "lines that are malformed or too long", pairs(all.map(([file, n]) => [file, whole(n)])))
  );
}

function versions(told) {
  const { devices, ...rest } = told ?? {};
  const counted = new Map();
  for (const device of devices ?? []) {
    const name = typeof device === "string" ? device : deviceName(device);
    counted.set(name, (counted.get(name) ?? 0) + 1);
  }
  return card(
    "Versions and devices",
    null,
    Object.keys(rest).length
      ? pairs([
          ...Object.entries(rest).map(([name, value]) => [name, value === null ? "not installed" : plain(value)]),
          [
            "devices",
            counted.size
              ? h(
                  "ul",
                  {},
                  [...counted].map(([name, n]) => h("li", {}, n > 1 ? `${n} × ${name}` : name)),
                )
              : "processor only",
          ],
        ])
      : empty("Not recorded", "Runs of this version of prl write versions.json."),
  );
}

export function open(place) {
  const latest = new Latest(),
    top = h("div", { class: "run-grid" }),
    configuration = new Configuration(),
    events = new Events(place),
    element = h("div", {}, loading("Loading"));

  async function load() {
    try {
      show(await get([place.run, "run"], {}, { signal: latest.next() }));
    } catch (error) {
      if (!isStale(error)) put(element, trouble(error, load));
    }
  }

  function show(info) {
    put(top, standing(info), versions(info.versions), skipped(info.skipped));
    if (!configuration.shown) configuration.show(info.config);
    configuration.shown = true;
    if (!top.isConnected) put(element, top, h("div", { class: "run-columns" }, configuration.element, events.element));
  }

  if (place.info()) show(place.info());
  else load();
  events.load();
  return {
    element,
    live: (kind, data) => {
      if (kind === "run") show(data);
      if (kind === "status" && place.info()) show(place.info());
      if (kind === "event") events.add(data);
    },
    close: () => {
      latest.stop();
      events.close();
    },
  };
}

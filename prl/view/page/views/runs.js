// The runs of the folder, and the choice of some to compare.

import { get, isStale, Latest } from "../api.js";
import { empty, h, loading, put, trouble } from "../dom.js";
import { ago, day, number, reward, whole } from "../format.js";
import { go, link } from "../router.js";
import { stateTag } from "../state_tag.js";

const REFRESH_MS = 5000;
const FILTER_FROM = 6;

export function open(place) {
  const latest = new Latest(),
    picked = new Set();
  const list = h("div", { class: "card runs", "aria-busy": "true" }, loading("Looking for runs"));
  const foot = h("div"),
    where = h("p", { class: "muted clip" });
  const search = h("input", {
    type: "search",
    placeholder: "Filter by name",
    "aria-label": "Filter by name",
    "data-search": "",
    oninput: () => show(),
  });
  const element = h(
    "div",
    {},
    h("div", { class: "toolbar" }, where, h("span", { class: "spring" }), search),
    list,
    foot,
  );
  let all = [],
    timer = null;
  search.hidden = true;

  async function load() {
    clearTimeout(timer);
    try {
      const told = await get(["runs"], {}, { signal: latest.next() });
      if (told.runs.length === 1 && !place.query.has("all") && all.length === 0)
        return go({ run: told.runs[0].run }, { replace: true });
      all = told.runs.sort((a, b) => (b.updated ?? 0) - (a.updated ?? 0));
      put(where, `${whole(all.length)} runs in ${told.root}`);
      search.hidden = all.length < FILTER_FROM;
      show();
    } catch (error) {
      if (isStale(error)) return;
      if (all.length === 0) put(list, trouble(error, load));
    }
    timer = setTimeout(load, REFRESH_MS);
  }

  function show() {
    list.removeAttribute("aria-busy");
    const asked = search.value.toLowerCase(),
      shown = all.filter((each) => each.run.toLowerCase().includes(asked));
    if (!shown.length)
      return put(
        list,
        all.length
          ? empty("No run of that name")
          : empty(
              "No run here yet",
              "Start one with prl run configs/math.toml, or give prl view the folder that holds your runs.",
            ),
      );
    const focused = document.activeElement?.dataset?.row;
    put(
      list,
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            h("th", { class: "pick" }, h("span", { class: "unseen" }, "Compare")),
            ["Run", "State", "Steps"].map((text) => h("th", { scope: "col" }, text)),
            ["Reward", "Held out"].map((text, n) => h("th", { scope: "col", class: n ? "num roomy" : "num" }, text)),
            ["Last step", "Started"].map((text) => h("th", { scope: "col", class: "roomy" }, text)),
          ),
        ),
        h("tbody", {}, shown.map(row)),
      ),
    );
    if (focused) [...list.querySelectorAll("[data-row]")].find((each) => each.dataset.row === focused)?.focus();
  }

  function row(each) {
    const share = each.num_steps ? each.step / each.num_steps : 0;
    return h(
      "tr",
      {},
      h(
        "td",
        { class: "pick" },
        h("input", {
          type: "checkbox",
          "aria-label": `Compare ${each.run}`,
          "data-row": `pick ${each.run}`,
          checked: picked.has(each.run),
          onchange: (event) => {
            if (event.target.checked) picked.add(each.run);
            else picked.delete(each.run);
            showPicked();
          },
        }),
      ),
      h("td", { class: "name" }, h("a", { href: link({ run: each.run }), "data-row": each.run }, each.run)),
      h("td", {}, stateTag(each.state)),
      h(
        "td",
        {},
        whole(each.step),
        h("span", { class: "roomy" }, ` of ${whole(each.num_steps)}`),
        h("span", { class: "meter roomy", "aria-hidden": "true" }, h("i", { share })),
      ),
      h("td", { class: "num" }, number(each.reward_last, 3)),
      h("td", { class: "num roomy" }, reward(each.eval_last, each.eval_is_accuracy)),
      h("td", { class: "muted roomy" }, ago(each.updated)),
      h("td", { class: "muted roomy" }, day(each.started)),
    );
  }

  function showPicked() {
    const names = [...picked];
    put(
      foot,
      names.length > 0 &&
        h(
          "div",
          { class: "picked" },
          `${names.length} chosen`,
          h("span", { class: "spring" }),
          h(
            "button",
            {
              type: "button",
              class: "plain",
              onclick: () => {
                picked.clear();
                showPicked();
                show();
              },
            },
            "Clear",
          ),
          h(
            "a",
            { class: "button", href: link({ run: names[0], query: { with: names.slice(1) } }) },
            names.length > 1 ? "Compare their curves" : "Open",
          ),
        ),
    );
  }

  load();
  return {
    element,
    close: () => {
      latest.stop();
      clearTimeout(timer);
    },
  };
}

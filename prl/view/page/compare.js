// Which runs are drawn beside this one: those of its folder, the newest first, by name.

import { get, isStale, Latest } from "./api.js";
import { h, loading, put, settled, trouble } from "./dom.js";
import { ago, number, whole } from "./format.js";
import { stateTag } from "./state_tag.js";

const MAX_CHOSEN = 8; // more lines in one chart nobody tells apart
const FILTER_FROM = 8;

/** Asks in a dialog. `chosen()` are the names so far, `onChoice(run, is chosen)` what is changed. */
export function compare({ run, chosen, onChoice }) {
  const latest = new Latest();
  const list = h("ul", { tabindex: "0", "aria-label": "Runs" }, loading("Looking for runs"));
  const told = h("p", { class: "muted", role: "status" });
  const search = h("input", {
    type: "search",
    placeholder: "Filter by name",
    "aria-label": "Filter by name",
    hidden: true,
    oninput: settled(() => load(), 200),
  });
  const dialog = h(
    "dialog",
    {
      class: "compare",
      "aria-labelledby": "compare-title",
      onclose: () => {
        latest.stop();
        dialog.remove();
      },
    },
    h("h2", { id: "compare-title" }, "Compare with"),
    h("p", { class: "muted" }, "Runs of the same folder, drawn into the same charts."),
    search,
    list,
    h("div", { class: "dialog-foot" }, told, h("button", { type: "button", onclick: () => dialog.close() }, "Done")),
  );

  function full() {
    const isFull = chosen().length >= MAX_CHOSEN;
    for (const box of list.querySelectorAll("input")) box.disabled = isFull && !box.checked;
    return isFull;
  }

  const row = (each) =>
    h(
      "li",
      {},
      h(
        "label",
        {},
        h("input", {
          type: "checkbox",
          checked: chosen().includes(each.run),
          onchange: (event) => {
            onChoice(each.run, event.target.checked);
            put(told, full() && `${MAX_CHOSEN} at most at once`);
          },
        }),
        h("span", { class: "clip", title: each.run }, each.run),
        stateTag(each.state),
        h("span", { class: "muted num" }, `step ${whole(each.step)}`),
        h("span", { class: "muted num roomy" }, each.reward_last === null ? "" : `reward ${number(each.reward_last, 3)}`),
        h("span", { class: "muted num roomy" }, ago(each.updated)),
      ),
    );

  async function load() {
    try {
      const { total, runs } = await get([run, "siblings"], { q: search.value }, { signal: latest.next() });
      if (total >= FILTER_FROM) search.hidden = false;
      if (runs.length) put(list, runs.map(row));
      else put(list, h("li", { class: "muted" }, search.value ? "No run of that name." : "There is no other run in the folder of this one."));
      put(told, full() ? `${MAX_CHOSEN} at most at once` : total > runs.length && `the ${runs.length} newest of ${whole(total)}`);
    } catch (error) {
      if (!isStale(error)) put(list, h("li", {}, trouble(error, load)));
    }
  }

  document.body.append(dialog);
  dialog.showModal();
  return load();
}

// A row of figures above charts: what a view says at a glance.

import { h, put } from "./dom.js";

/** The row; `set([name, value, note?, all of the note?], ...)`. */
export class Figures {
  element = h("dl", { class: "figures" });

  set(...figures) {
    put(
      this.element,
      figures.map(([name, shown, note = null, about = note]) =>
        h("div", { title: about }, h("dt", {}, name), h("dd", {}, shown, h("small", {}, note ?? ""))),
      ),
    );
  }
}

const known = (curve) => curve?.mean.filter((each) => each !== null) ?? [];

/** Of a series of the server: the first value that there is, the last, and the mean of all; null where there is none. */
export const firstOf = (curve) => known(curve)[0] ?? null;
export const lastOf = (curve) => known(curve).at(-1) ?? null;
export function meanOf(curve) {
  const all = known(curve);
  return all.length ? all.reduce((a, b) => a + b, 0) / all.length : null;
}

// A list of any length: only the rows in sight are there, and they are asked for page by page. It is one listbox for
// the keyboard: up and down, Page Up and Page Down, Home, End; Enter or a click chooses.

import { isStale } from "./api.js";
import { h, put, settled } from "./dom.js";

const PAGE = 50;
/** Browsers end at about 33 million pixels; beyond this a pixel stands for more than one. */
const MAX_HEIGHT = 12e6;
let lists = 0;

export class VirtualList {
  #pages = new Map();
  #asking = new Map();
  #rows = new Map();
  #size = new ResizeObserver(() => this.#draw());
  #settled = settled(() => this.#fetch(), 60);
  total = 0;
  active = 0;

  /** `fetch(offset, limit, signal)` -> {total, rows}; `row(item)` -> nodes; `onChoose(item)`; `isChosen(item)`. */
  constructor({ label, height, fetch, row, onChoose, isChosen, onTotal, onError, nothing }) {
    Object.assign(this, { height, fetch, row, onChoose, isChosen, onTotal, onError, nothing });
    this.id = `list-${(lists += 1)}`;
    this.inner = h("div", { class: "rows", role: "presentation" });
    this.note = h("div", { hidden: true });
    this.element = h(
      "div",
      {
        class: "virtual",
        tabindex: "0",
        role: "listbox",
        "aria-label": label,
        "aria-busy": "true",
        onscroll: () => this.#draw(),
        onkeydown: (event) => this.#key(event),
        onfocus: () => this.#draw(),
      },
      this.inner,
    );
    this.#size.observe(this.element);
  }

  destroy() {
    this.#size.disconnect();
    this.#settled.stop();
    this.#abort();
  }

  /** Forget all and begin from the top; the promise ends with the first page. */
  async reset() {
    this.#abort();
    this.#pages.clear();
    this.#rows.clear();
    put(this.inner);
    this.total = 0;
    this.active = 0;
    this.element.scrollTop = 0;
    await this.#page(0);
  }

  /** Ask again for what is in sight; the place in the list stays. */
  refresh() {
    const [first, last] = this.#seen();
    for (const page of this.#pages.keys()) if (page < first || page > last) this.#pages.delete(page);
    for (let page = first; page <= last; page += 1) this.#page(page, true);
  }

  item(index) {
    return this.#pages.get(Math.floor(index / PAGE))?.[index % PAGE] ?? null;
  }

  /** Draw the rows again, for what is chosen has changed. */
  redraw() {
    this.#rows.clear();
    put(this.inner);
    this.#draw();
  }

  choose(index) {
    if (index < 0 || index >= this.total) return;
    this.active = index;
    this.#into();
    this.#draw();
    const item = this.item(index);
    if (item) this.onChoose(item, index);
  }

  get #full() {
    return this.total * this.height;
  }
  get #tall() {
    return Math.min(MAX_HEIGHT, this.#full);
  }
  get #scale() {
    return this.#full > MAX_HEIGHT
      ? (this.#full - this.element.clientHeight) / (MAX_HEIGHT - this.element.clientHeight)
      : 1;
  }

  #draw() {
    const seen = this.element.clientHeight,
      top = this.element.scrollTop * this.#scale;
    this.inner.style.height = `${this.#tall}px`;
    const first = Math.max(0, Math.floor(top / this.height) - 4),
      last = Math.min(this.total - 1, Math.ceil((top + seen) / this.height) + 4);
    for (const [index, element] of this.#rows) {
      if (index >= first && index <= last) continue;
      element.remove();
      this.#rows.delete(index);
    }
    let missing = false;
    for (let index = first; index <= last; index += 1) {
      const item = this.item(index);
      missing ||= item === null;
      let element = this.#rows.get(index);
      if (!element || (item !== null && element.dataset.wait)) {
        element?.remove();
        element = h(
          "div",
          {
            class: "row",
            role: "option",
            id: `${this.id}-${index}`,
            "aria-setsize": this.total,
            "aria-posinset": index + 1,
            "data-wait": item === null ? "1" : null,
            onclick: () => this.choose(index),
          },
          item === null ? h("span", { class: "muted" }, "…") : this.row(item),
        );
        this.#rows.set(index, element);
        this.inner.append(element);
      }
      element.setAttribute("aria-selected", String(item !== null && this.isChosen(item)));
      element.classList.toggle("active", index === this.active && document.activeElement === this.element);
      element.style.transform = `translateY(${index * this.height - top + this.element.scrollTop}px)`;
    }
    if (this.#rows.has(this.active)) this.element.setAttribute("aria-activedescendant", `${this.id}-${this.active}`);
    else this.element.removeAttribute("aria-activedescendant");
    if (missing) this.#settled();
  }

  /** The first and the last page in sight. */
  #seen() {
    const top = this.element.scrollTop * this.#scale;
    return [Math.floor(top / this.height / PAGE), Math.floor((top + this.element.clientHeight) / this.height / PAGE)];
  }

  #fetch() {
    const [first, last] = this.#seen();
    for (const [page, controller] of this.#asking) if (page < first || page > last) controller.abort();
    for (let page = first; page <= last; page += 1) this.#page(page);
  }

  async #page(page, again = false) {
    if (this.#asking.has(page) || (this.#pages.has(page) && !again)) return;
    const controller = new AbortController();
    this.#asking.set(page, controller);
    try {
      const { total, rows } = await this.fetch(page * PAGE, PAGE, controller.signal);
      this.#pages.set(page, rows);
      if (again) this.#forget(page);
      this.total = total;
      this.element.removeAttribute("aria-busy");
      this.onTotal(total);
      this.element.classList.toggle("none", total === 0);
      if (total === 0)
        put(
          this.inner,
          h("div", { role: "option", "aria-selected": "false", "aria-disabled": "true" }, this.nothing()),
        );
      else this.#draw();
    } catch (error) {
      if (isStale(error)) return;
      this.element.removeAttribute("aria-busy");
      this.onError(error);
    } finally {
      if (this.#asking.get(page) === controller) this.#asking.delete(page);
    }
  }

  /** Draw the rows of a page anew. */
  #forget(page) {
    for (const [index, element] of this.#rows) {
      if (Math.floor(index / PAGE) !== page) continue;
      element.remove();
      this.#rows.delete(index);
    }
  }

  #abort() {
    for (const controller of this.#asking.values()) controller.abort();
    this.#asking.clear();
  }

  #into() {
    const top = this.element.scrollTop * this.#scale,
      at = this.active * this.height,
      seen = this.element.clientHeight;
    if (at < top) this.element.scrollTop = at / this.#scale;
    else if (at + this.height > top + seen) this.element.scrollTop = (at + this.height - seen) / this.#scale;
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const far = Math.max(1, Math.floor(this.element.clientHeight / this.height) - 1);
    const to = {
      ArrowDown: this.active + 1,
      ArrowUp: this.active - 1,
      PageDown: this.active + far,
      PageUp: this.active - far,
      Home: 0,
      End: this.total - 1,
    }[event.key];
    if (event.key === "Enter" || event.key === " ") this.choose(this.active);
    else if (to !== undefined) {
      this.active = Math.max(0, Math.min(this.total - 1, to));
      this.#into();
      this.#draw();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

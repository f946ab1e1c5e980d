// Elements. Data becomes text nodes or attribute values and nothing else: there is no way here to give HTML.

/** An element: `h("li", {class: "x", onclick: f, hidden: true}, "text", child, [more], null)`. */
export function h(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "indeterminate") made[name] = value;
    else if (name === "share")
      made.style.setProperty("--share", `${(100 * Math.max(0, Math.min(1, value))).toFixed(2)}%`);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...flat(children));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

/** The same for SVG. */
export function svg(tag, given = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(given)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** `where` holds exactly these from now on. */
export function put(where, ...children) {
  where.replaceChildren(...flat(children));
  return where;
}

function flat(children) {
  return children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false);
}

/** Says something to those who listen rather than look. */
export function say(text) {
  const where = document.getElementById("said");
  if (where.textContent !== text) where.textContent = text;
}

/** While there is nothing to show yet. `share` is how much of it is done, if that is known. */
export function loading(what = "Loading", share = null) {
  return h(
    "div",
    { class: "loading" },
    h("div", {}, share === null ? `${what} …` : `${what}: ${Math.round(100 * share)} %`),
    h("div", { class: share === null ? "bar" : "bar known", "aria-hidden": "true" }, h("i", { share: share ?? 0.3 })),
  );
}

/** There is nothing, and why, and what to do. */
export function empty(title, text = null) {
  return h("p", { class: "empty" }, h("strong", {}, title), text);
}

/** Something failed; `again` tries it once more. */
export function trouble(error, again = null) {
  return h(
    "div",
    { class: "trouble", role: "alert" },
    h("strong", {}, error.title ?? "This did not load"),
    error.message,
    again && h("div", {}, h("button", { onclick: again }, "Try again")),
  );
}

/** A call every `ms` at most, with the arguments of the latest; the last one is never lost. `stop()` forgets it. */
export function throttled(call, ms) {
  let timer = null,
    last = 0,
    latest = [];
  const fire = () => {
    timer = null;
    last = performance.now();
    call(...latest);
  };
  const wrapped = (...given) => {
    latest = given;
    timer ??= setTimeout(fire, Math.max(0, ms - (performance.now() - last)));
  };
  wrapped.stop = () => {
    clearTimeout(timer);
    timer = null;
  };
  return wrapped;
}

/** A call once it has been quiet for `ms`. */
export function settled(call, ms) {
  let timer = null;
  const wrapped = (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...given), ms);
  };
  wrapped.stop = () => clearTimeout(timer);
  return wrapped;
}

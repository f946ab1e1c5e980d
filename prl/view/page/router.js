// Where one is: everything that makes a view what it is stands in the address, so that any of it can be sent to others.
//
//   #/                                       the list of runs
//   #/RUN/VIEW                               a view of a run
//   #/RUN/learning?smooth=0.6&with=OTHER     its curves, smoothed, beside those of another; from=, to= are steps
//   #/RUN/pipeline?at=1796050200&for=4       four seconds of its timeline, from a moment in unix seconds
//   #/RUN/samples?group=17&reward_max=0      a group, among those that the filters leave
//   #/RUN/samples/ID                         one sample

export const VIEWS = ["learning", "policy", "pipeline", "samples", "run"];

/** {run, view, id, query} of an address' hash. */
export function parse(hash) {
  const [path, asked = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [run = "", view = "", ...rest] = path.split("/").map(decoded);
  const known = VIEWS.includes(view) ? view : "learning";
  return { run, view: run ? known : "runs", id: rest.join("/") || null, query: new URLSearchParams(asked) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** The hash of a place. Of `query` only what is not null or "". */
export function link({ run = "", view = "learning", id = null, query = {} }) {
  const kept = new URLSearchParams();
  for (const [name, value] of query instanceof URLSearchParams ? query : Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "") kept.append(name, each);
    }
  }
  const parts = run ? [run, view, ...(id === null ? [] : [String(id)])] : [];
  return `#/${parts.map(encodeURIComponent).join("/")}${kept.size ? `?${kept}` : ""}`;
}

/** Go there; with `replace` without a step in the browser's history. */
export function go(place, { replace = false } = {}) {
  const hash = typeof place === "string" ? place : link(place);
  if (hash === location.hash) return;
  if (replace) {
    history.replaceState(null, "", hash);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = hash;
  }
}

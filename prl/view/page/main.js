// The page of prl: plain modules, as they are served; no build step, and uPlot is all that is taken from others.
//
// Which file holds what:
//
//   index.html theme_boot.js       the frame, and the theme before the first paint
//   theme.css                      every colour, in light and in dark
//   base.css layout.css            text and controls; header, toolbars, cards
//   charts.css samples.css run.css what their names say
//   main.js router.js              from the address to the view that is open; addresses, read and made
//   shell.js state_tag.js          header, tabs, lost connections; the state of a run as a sign and a word
//   api.js live.js                 questions, each of which can be aborted; what a live run sends
//   dom.js format.js               elements, from data that is never HTML; numbers as people read them
//   settings.js shortcuts.js       theme and how curves are drawn, kept by the browser; single keys and their list
//   chart.js chart_card.js         one chart of lines, on uPlot; its frame and legend
//   curves.js curve_controls.js    many charts of one or many runs; the row above them
//   compare.js held_out.js         the choice of runs to draw beside this one; lines of evaluations
//   figures.js                     a row of figures above charts
//   keys.js                        which keys a run has written so far
//   palette.js smoothing.js        colours and dashes; the moving average
//   spread.js                      a distribution over steps: a plane, and the bars of one step
//   timeline.js timeline_*.js      the lanes, by mouse and keyboard; spans to pixels, colours and patterns, words
//   gauges.js                      what is measured each second, in line with the lanes
//   virtual_list.js segments.js    a list of a million rows, asked for page by page; one of a few choices
//   tokens.js token_scales.js      a completion's tokens with their numbers; what stands for how much
//   conversation.js                many turns as they were said
//   views/                         runs, learning, policy, pipeline, samples (group, sample), run (configuration, events);
//                                  each view exports open(place) -> {element, live?, moved?, keys?, close}
//
// Invariants: the address says all of what is shown; a question that nobody waits for is aborted; nothing that a run or
// a model wrote becomes markup; whatever colour says is also said by a pattern, a sign, a place or a number.

import { empty, h, loading, put, trouble } from "./dom.js";
import { go, link, parse, VIEWS } from "./router.js";
import { Shell } from "./shell.js";
import { Shortcuts } from "./shortcuts.js";
import { nextTheme } from "./settings.js";

const TITLES = {
  runs: "Runs",
  learning: "Learning",
  policy: "On policy",
  pipeline: "Pipeline",
  samples: "Samples",
  run: "Run",
};
const main = document.getElementById("view");
let place = null,
  view = null;

const shortcuts = new Shortcuts(() => view?.keys ?? []);
const shell = new Shell(document.getElementById("top"), {
  titles: TITLES,
  onHelp: () => shortcuts.show(),
  onLive: (kind, data) => view?.live?.(kind, data),
});

/** What a view is opened with. */
function context(at) {
  return {
    ...at,
    info: () => shell.info,
    /** The address says this now; nothing is opened anew. */
    change: (query) => {
      if (at.run !== place.run || at.view !== place.view) return; // said late, of what is not open any more
      history.replaceState(null, "", link({ ...at, ...place, query }));
      place.query = query;
      shell.carry(place);
    },
  };
}

async function opened() {
  const next = parse(location.hash),
    same = place && next.run === place.run && next.view === place.view;
  const first = place === null;
  place = next;
  shell.at(place);
  document.title = [place.run, TITLES[place.view], "prl"].filter(Boolean).join(" · ");
  if (same && view?.moved) return view.moved(context(place));
  view?.close();
  view = null;
  const panel = h(
    "div",
    place.run ? { role: "tabpanel", id: "panel", "aria-labelledby": `tab-${place.view}` } : { id: "panel" },
  );
  put(main, put(panel, loading("Opening")));
  scrollTo(0, 0);
  if (!first && !document.getElementById("top").contains(document.activeElement)) main.focus({ preventScroll: true });
  const mine = place;
  try {
    const { open } = await import(`./views/${place.view}.js`);
    if (mine !== place) return;
    view = open(context(place));
    put(panel, view.element);
  } catch (error) {
    console.error(error);
    put(
      panel,
      trouble(
        {
          title: "This view did not open",
          message: `${error.message}. Load the page again; if that does not help, it is a bug of prl.`,
        },
        () => location.reload(),
      ),
    );
  }
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
VIEWS.forEach((name, n) =>
  shortcuts.add(
    String(n + 1),
    TITLES[name],
    () => place.run && go({ run: place.run, view: name, query: shell.carried(place) }),
  ),
);
shortcuts.add("g", "All runs", () => go("#/"));
shortcuts.add("t", "Theme: system, light, dark", () => shell.theme(nextTheme()));
shortcuts.add("/", "Search", () => main.querySelector("[data-search]")?.focus());

// a token that opened the page is in a cookie by now: it stays out of the history and of links that are sent on
if (new URLSearchParams(location.search).has("token"))
  history.replaceState(null, "", `${location.pathname}${location.hash}`);
addEventListener("hashchange", opened);
addEventListener("unhandledrejection", (event) => event.reason?.name === "AbortError" && event.preventDefault());
opened().catch((error) => put(main, empty("The page did not start", error.message)));

// Colours for canvases, resolved from theme.css, each with a dash so that colour is never all that tells lines apart.

const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3], [4, 2], [12, 4]];
const cache = new Map();
let probe = null;

addEventListener("prl-theme", () => cache.clear());

/** The colour that a custom property has in the theme that is shown. */
export function colour(name) {
  if (!cache.has(name)) {
    probe ??= document.body.appendChild(Object.assign(document.createElement("span"), { hidden: true }));
    probe.style.color = `var(--${name})`;
    cache.set(name, getComputedStyle(probe).color);
  }
  return cache.get(name);
}

/** The same with an opacity. */
export function faint(name, alpha) {
  const parts = colour(name).match(/[\d.]+/g);
  return `rgb(${parts[0]} ${parts[1]} ${parts[2]} / ${alpha})`;
}

/** Of the nth line of one of several runs: the run's colour in every chart, and dashes that tell its lines apart. */
export const comparedStyle = (run, n, num) => ({
  colour: `series-${run % 6}`,
  dash: DASHES[(Math.floor(run / 6) + run + n * num) % 6],
});

/** Of the nth line: the name of its colour, and its dash. */
export const lineStyle = (n) => ({ colour: `series-${n % 6}`, dash: DASHES[Math.floor(n / 6 + n) % 6] });

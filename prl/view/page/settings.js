// What a person has chosen and the browser keeps: the theme, and how curves are drawn.

const kept = (name, otherwise) => {
  try {
    return localStorage.getItem(`prl.${name}`) ?? otherwise;
  } catch {
    return otherwise;
  }
};

const keep = (name, value) => {
  try {
    localStorage.setItem(`prl.${name}`, value);
  } catch {
    // this browser keeps nothing; the choice lasts while the page is open
  }
};

const THEMES = ["system", "light", "dark"];
let theme = kept("theme", "system");

/** "system", "light" or "dark". */
export const chosenTheme = () => (THEMES.includes(theme) ? theme : "system");

/** The next of the three, shown at once. */
export function nextTheme() {
  theme = THEMES[(THEMES.indexOf(chosenTheme()) + 1) % THEMES.length];
  keep("theme", theme);
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  dispatchEvent(new Event("prl-theme"));
  return theme;
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("prl-theme")));

/** How curves are drawn: in the address where it says so, else as chosen last. */
export function curveSettings(query) {
  const smooth = Number(query.get("smooth") ?? kept("smooth", "0"));
  const x = query.get("x") ?? kept("x", "step");
  return {
    smooth: smooth >= 0 && smooth < 1 ? smooth : 0,
    log: (query.get("log") ?? kept("log", "0")) === "1",
    x: ["step", "at", "samples"].includes(x) ? x : "step",
  };
}

/** Keep one of them for the next time. */
export const keepCurveSetting = (name, value) => keep(name, String(value));

// Runs before the first paint, so that a chosen theme never flashes in as the other one; the rest is in settings.js.
try {
  const chosen = localStorage.getItem("prl.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // a browser that keeps nothing follows the system
}

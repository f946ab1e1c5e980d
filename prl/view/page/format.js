// Numbers, times and names as people read them. All pure.

const THIN = "\u2009";

/** 0.8086, 12.13, 302,265, 1.2e-6; "–" for nothing. */
export function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e9))
    return Number(value.toPrecision(Math.min(3, digits)))
      .toExponential()
      .replace("e+", "e")
      .replaceAll("-", "−");
  if (Number.isInteger(value)) return whole(value);
  const shown = size >= 1000 ? whole(Math.round(value)) : String(Number(value.toPrecision(digits)));
  return shown.replace(/^-/, "−");
}

/** 302,265 */
export function whole(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en-US").replace(/^-/, "−");
}

/** 302k, 1.2M */
export function compact(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  for (const [unit, by] of [
    ["T", 1e12],
    ["G", 1e9],
    ["M", 1e6],
    ["k", 1e3],
  ]) {
    if (size >= by) return `${Number((value / by).toPrecision(3))}${unit}`;
  }
  return number(value, 3);
}

/** 80.9 % */
export function percent(value, digits = 1) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(digits)}${THIN}%`;
}

/** A mean reward: 80.9 % where it is a share of right answers, else a number. */
export const reward = (value, isAccuracy) => (isAccuracy ? percent(value) : number(value, 3));

const isWhole = (value) => Math.abs(value - Math.round(value)) < 1e-6;

/** The same on an axis: with as many digits as tell its marks apart. */
export function share(value, marks) {
  const step = Math.abs((marks[1] ?? 1) - (marks[0] ?? 0));
  const digits = [0, 1, 2, 3].find((n) => isWhole(step * 10 ** (n + 2)));
  return percent(value, digits ?? 3);
}

/** 12 ms, 3.2 s, 4:05 min, 2:10 h, 3.1 d */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds < 0.001) return seconds === 0 ? "0 s" : `${(1e6 * seconds).toFixed(0)} µs`;
  if (seconds < 1) return `${number(1000 * seconds, 3)} ms`;
  if (seconds < 60) return `${number(seconds, 3)} s`;
  const whole_s = Math.round(seconds);
  const two = (n) => String(n).padStart(2, "0");
  if (whole_s < 3600) return `${Math.floor(whole_s / 60)}:${two(whole_s % 60)} min`;
  if (whole_s < 2 * 86400) return `${Math.floor(whole_s / 3600)}:${two(Math.floor((whole_s % 3600) / 60))} h`;
  return `${number(whole_s / 86400, 3)} d`;
}

/** 3 minutes ago; of unix seconds. */
export function ago(at, now = Date.now() / 1000) {
  if (!at) return "–";
  const seconds = Math.max(0, now - at);
  if (seconds < 10) return "just now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 36 * 3600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

/** 14:49:13 or 14:49:13.567 of unix seconds, in the time of who looks. */
export function clock(at, fine = false) {
  const date = new Date(1000 * at);
  if (Number.isNaN(date.getTime())) return "–";
  const text = date.toTimeString().slice(0, 8);
  return fine ? `${text}.${String(date.getMilliseconds()).padStart(3, "0")}` : text;
}

/** 2026-11-30 14:49 */
export function day(at) {
  if (!at) return "–";
  const date = new Date(1000 * at);
  const two = (n) => String(n).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}`;
}

/** "reward_answer_mean" as words: "reward answer mean". */
export const words = (key) => key.replaceAll("_", " ");

/** A value of the configuration as TOML shows it. */
export function toml(value) {
  if (value === null || value === undefined) return "not set";
  return typeof value === "string"
    ? JSON.stringify(value)
    : Array.isArray(value) || typeof value === "object"
      ? JSON.stringify(value)
      : String(value);
}

// Questions to the server. Every one can be aborted, and a failure says what to do.

/** `title` in a few words, `message` with what to do. */
export class ApiError extends Error {
  constructor(title, message, status = 0) {
    super(message);
    this.title = title;
    this.status = status;
  }
}

/** Whether `error` only says that nobody waits for the answer any more. */
export const isStale = (error) => error?.name === "AbortError";

const path = (parts) => parts.map((each) => encodeURIComponent(each)).join("/");

/**
 * The answer to `GET api/<parts>?<query>`. While a large run is being indexed, asks again and tells `onIndexing` the
 * share that is done.
 */
export async function get(parts, query = {}, { signal = undefined, onIndexing = () => {} } = {}) {
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") asked.set(name, value);
  }
  const url = `api/${path(parts)}${asked.size ? `?${asked}` : ""}`;
  for (;;) {
    const response = await ask(url, signal);
    if (response.status !== 202) return response.json();
    onIndexing((await response.json()).indexing ?? null);
    await pause(500, signal);
  }
}

async function ask(url, signal) {
  let response;
  try {
    response = await fetch(url, { signal, headers: { Accept: "application/json" } });
  } catch (error) {
    if (isStale(error)) throw error;
    throw new ApiError(
      "The server does not answer",
      "It ends with its run. To look at what the run left, start prl view with the run's folder and open the address that it prints.",
    );
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => ({}));
  const title =
    response.status === 404
      ? "Not found"
      : response.status === 401 || response.status === 403
        ? "The server asks for its token"
        : "The server could not answer";
  const what =
    told.error ??
    (response.status === 401 || response.status === 403
      ? "Open the address with ?token=… that was printed at the start; it is then kept for this browser."
      : `It answered ${response.status} to ${url}. The terminal where it runs says why.`);
  throw new ApiError(title, what, response.status);
}

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener(
      "abort",
      () => {
        clearTimeout(timer);
        reject(new DOMException("stale", "AbortError"));
      },
      { once: true },
    );
  });
}

/** Aborts the question before when the next is asked: only the newest answer counts. `const signal = latest.next()`. */
export class Latest {
  #controller = null;

  next() {
    this.stop();
    this.#controller = new AbortController();
    return this.#controller.signal;
  }

  stop() {
    this.#controller?.abort();
    this.#controller = null;
  }
}

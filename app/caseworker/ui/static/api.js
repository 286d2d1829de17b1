// Asks the service's own API, with the key of whoever looks.

/** The path that the service is served under, without a slash at its end. */
export const root = new URL("../..", import.meta.url).pathname.replace(/\/$/, "");

const KEY = "caseworker.key";

export const session = {
  get key() {
    return sessionStorage.getItem(KEY);
  },
  signIn(key) {
    sessionStorage.setItem(KEY, key);
  },
  signOut() {
    sessionStorage.removeItem(KEY);
  },
};

/** An answer that is no success; `problem` is the problem document. */
export class ApiError extends Error {
  constructor(status, problem) {
    super(problem.detail ?? problem.title ?? `The service returned status ${status}.`);
    this.status = status;
    this.problem = problem;
    this.errors = problem.errors ?? [];
  }
}

async function ask(method, path, { body, accept = "application/json", signal, more } = {}) {
  const { key } = session;
  const sent = { ...(key && { Authorization: `Bearer ${key}` }), Accept: accept, ...more, ...(body === undefined ? {} : { "Content-Type": "application/json" }) };
  const answer = await fetch(root + path, {
    method,
    headers: sent,
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
    credentials: "omit",
    redirect: "error",
  });
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  // A late answer to an earlier key says nothing about the present one.
  if (key === session.key && (answer.status === 401 || (answer.status === 403 && !key))) document.dispatchEvent(new Event("sign-in-needed"));
  throw new ApiError(answer.status, problem);
}

export async function get(path, query = {}, signal) {
  const wanted = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
  const text = wanted.toString();
  return (await ask("GET", text ? `${path}?${text}` : path, { signal })).json();
}

export async function send(method, path, body, more) {
  const answer = await ask(method, path, { body, more });
  return answer.status === 204 ? null : answer.json();
}

let caller = {};

/** Returns why this key may not do what needs a scope; null if it may. */
export async function refusal(scope) {
  if (caller.key !== session.key || !caller.scopes) {
    caller = { key: session.key, scopes: (await get("/whoami")).scopes };
  }
  return caller.scopes.includes(scope) ? null : `This key lacks the scope ${scope}.`;
}

/** Returns the address of a file in memory: pictures that need a key cannot be named directly. */
export async function file(path, signal) {
  return (await ask("GET", path, { accept: "*/*", signal })).blob();
}

/** Yields the events of a run as they come, again from the last one whenever the stream breaks. */
export async function* events(runId, { after = 0, signal }) {
  const path = `/runs/${encodeURIComponent(runId)}/events`;
  for (let failures = 0; !signal.aborted; failures += 1) {
    try {
      const more = { "Last-Event-ID": String(after) };
      const answer = await ask("GET", path, { accept: "text/event-stream", signal, more });
      if (answer.status === 204) return; // the run has no more events
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let text = ""; ; ) {
        const { value, done } = await reader.read();
        if (done) break;
        const parts = (text + value).split("\n\n");
        text = parts.pop();
        for (const part of parts) {
          const data = part.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim());
          if (!data.length) continue;
          const event = JSON.parse(data.join("\n"));
          after = event.seq;
          failures = 0;
          yield event;
          if (/^run\.(completed|failed|halted|cancelled)$/.test(event.type)) return;
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && error.status < 500 && error.status !== 429) throw error;
    }
    await pause(Math.min(500 * 2 ** failures, 15_000), signal);
  }
}

/** Waits, or until the page is left. */
export function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    }, { once: true });
  });
}

/** The API's path of a run. */
export function runPath(runId, ...more) {
  return ["/runs", encodeURIComponent(runId), ...more].join("/");
}

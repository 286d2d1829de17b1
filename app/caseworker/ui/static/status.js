// Statuses: always a sign and a word beside the colour.

import { h, s } from "./dom.js";

const SIGNS = {
  completed: "M4.5 8.3l2.3 2.3 4.7-5",
  failed: "M5.3 5.3l5.4 5.4M10.7 5.3l-5.4 5.4",
  halted: "M6.2 5.2v5.6M9.8 5.2v5.6",
  cancelled: "M4.8 8h6.4",
  running: "M6.6 5.2v5.6L10.8 8z",
  waiting: "M8 4.8V8l2.2 1.6",
  queued: "M5 8h.01M8 8h.01M11 8h.01",
  skipped: "M5 5.2L8 8l-3 2.8M8.6 5.2L11.6 8l-3 2.8",
  not_started: "",
};

const HOLLOW = new Set(["queued", "skipped", "not_started", "waiting"]);

/** Returns the sign of a status; the word stands beside it, or is its label. */
export function sign(status, label) {
  const known = status in SIGNS ? status : "not_started";
  return s(
    "svg",
    {
      class: `sign sign-${known}${HOLLOW.has(known) ? " hollow" : ""}`,
      viewBox: "0 0 16 16",
      ...(label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" }),
    },
    s("circle", { cx: 8, cy: 8, r: 7 }),
    s("path", { d: SIGNS[known] }),
  );
}

/** Returns a status as sign and word. */
export function badge(status) {
  return h("span", { class: `badge status-${status}` }, sign(status), words(status));
}

/** "not_started" -> "not started". */
export function words(name) {
  return String(name).replaceAll("_", " ");
}

export const ENDED = new Set(["completed", "failed", "halted", "cancelled"]);
export const STATUSES = ["queued", "running", "waiting", "completed", "failed", "halted", "cancelled"];
export const KINDS = ["case", "graph", "agent", "external"];

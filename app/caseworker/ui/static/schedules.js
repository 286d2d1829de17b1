// Delayed and repeated runs.

import { get, root, runPath } from "./api.js";
import { h, nothing } from "./dom.js";
import { ago, count, instant } from "./format.js";
import { listing } from "./listing.js";

const COLUMNS = [["Name", ""], ["When", ""], ["Next", "minor"], ["Last run", ""], ["What", "wide"], ["Overlap", "wide"], ["Skipped", "number wide"], ["State", ""]];

export function show({ main, signal }) {
  return listing(main, {
    title: "Schedules",
    columns: COLUMNS,
    load: async (cursor) => {
      const page = await get("/schedules", { limit: 100, cursor }, signal);
      return { items: page.schedules, next: page.next_cursor };
    },
    row: (one) => [
      h("strong", {}, one.name),
      [h("code", {}, one.cron), h("span", { class: "muted" }, ` ${one.timezone}`)],
      one.next_at ? h("time", { datetime: one.next_at, title: instant(one.next_at) }, ago(one.next_at)) : "–",
      one.last_run_id ? h("a", { class: "row-link", href: `${root}/ui${runPath(one.last_run_id)}` }, one.last_run_id) : "–",
      one.run.kind ?? "case",
      one.overlap,
      count(one.skipped),
      one.last_error ? h("span", { class: "tag tag-bad", title: one.last_error }, "failing") :
        one.paused ? h("span", { class: "tag tag-warn" }, "paused") : h("span", { class: "tag tag-ok" }, "active"),
    ],
    empty: nothing("No schedules.", "Create one with PUT /schedules/{name}."),
  });
}

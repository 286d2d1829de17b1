// The lists of registered agents and graphs.

import { get, root } from "./api.js";
import { h, nothing } from "./dom.js";
import { ago, count, instant } from "./format.js";
import { listing } from "./listing.js";

const COLUMNS = [["Name", ""], ["Version", "number"], ["Description", "cut"], ["Bytes", "number wide"], ["Registered", "minor"]];

export function show({ main, params: [what], signal }) {
  return listing(main, {
    title: what === "agents" ? "Agents" : "Graphs",
    columns: COLUMNS,
    load: async (cursor) => {
      const page = await get(`/${what}`, { limit: 100, cursor }, signal);
      return { items: page[what], next: page.next_cursor };
    },
    row: (one) => [
      h("a", { class: "row-link", href: `${root}/ui/${what}/${one.name}` }, one.name),
      `@${one.version}`,
      one.description ?? "",
      count(one.size_bytes),
      h("time", { datetime: one.created_at, title: instant(one.created_at) }, ago(one.created_at)),
    ],
    empty: nothing(`No registered ${what}.`, `Register one with POST /${what}.`),
  });
}

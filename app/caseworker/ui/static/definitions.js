// The lists of registered agents and graphs.

import { root } from "./api.js";
import { h, nothing, since } from "./dom.js";
import { count } from "./format.js";
import { listing } from "./listing.js";

const COLUMNS = [["Name", ""], ["Version", "number"], ["Description", "cut"], ["Bytes", "number wide"], ["Registered", "minor"]];

export function show({ main, params: [what], signal }) {
  return listing(main, what, {
    title: what === "agents" ? "Agents" : "Graphs",
    columns: COLUMNS,
    signal,
    row: (one) => [
      h("a", { class: "row-link", href: `${root}/ui/${what}/${one.name}` }, one.name),
      `@${one.version}`,
      one.description ?? "",
      count(one.size_bytes),
      since(one.created_at),
    ],
    empty: nothing(`No registered ${what}.`, `Register one with POST /${what}.`),
  });
}

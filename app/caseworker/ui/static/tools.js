// The tools that agents may use: those of the service, and those of MCP servers.

import { get } from "./api.js";
import { card, fill, h, nothing, shown, table } from "./dom.js";

const COLUMNS = [["Name", ""], ["Description", "cut"], ["Approval", "minor"], ["Arguments", ""]];

export async function show({ main, signal }) {
  const { tools, servers } = await get("/tools", {}, signal);
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Tools")),
    card("Tools of the service", tools.length
      ? table("Tools of the service", COLUMNS, tools.map(row))
      : nothing("No tools.", "tools.plugins and tools.http add tools.")),
    servers.map((one) => card(`MCP server ${one.name}`,
      one.problem && h("p", { class: "problem" }, one.problem),
      one.tools.length ? table(`Tools of ${one.name}`, COLUMNS, one.tools.map(row)) : null)));
}

function row(one) {
  return [one.name, one.description, one.requires_approval ? "required" : "–",
    h("details", {}, h("summary", {}, String(Object.keys(one.parameters.properties ?? {}).length)), shown(one.parameters))];
}

// The tools, models and API keys of the service.

import { get, root } from "./api.js";
import { card, fill, h, nothing, table } from "./dom.js";

const TOOL = [["Name", ""], ["Description", "cut"], ["Approval", ""], ["Arguments", "cut"]];
const MODEL = [["Name", ""], ["Model", ""], ["Provider", ""], ["Capabilities", "minor"], ["Fallbacks", "cut"]];
const KEY = [["ID", "mono"], ["Name", "cut"], ["Tenant", ""], ["Scopes", "minor"], ["State", ""]];

const TITLES = { tools: "Tools", models: "Models", keys: "Keys" };
const CARDS = {
  tools: ({ tools, servers }) => [list("Tools of the service", TOOL, tools.map(tool)),
    servers.map((one) => list(`MCP server ${one.name}`, TOOL, one.tools.map(tool), one.problem))],
  models: ({ models }) => list("Configured models", MODEL, Object.entries(models).map(([name, one]) =>
    [name, one.model, one.provider, one.capabilities.join(", ") || "text", one.fallbacks.map((each) => each.model).join(", ")])),
  keys: ({ keys }) => list("API keys", KEY, keys.map((one) =>
    [one.kind === "agent" ? h("a", { href: `${root}/ui/keys/${one.key_id}` }, one.key_id) : one.key_id, one.name, one.tenant,
      one.kind === "agent" ? "agent" : one.scopes.join(", "), keyState(one)]), "`caseworker keys create` creates one."),
};

export async function show({ main, params: [what], signal }) {
  const cards = CARDS[what](await get(`/${what}`, {}, signal));
  fill(main, h("div", { class: "page-head" }, h("h1", {}, TITLES[what])), cards);
}

function list(title, columns, rows, without) {
  return card(title, rows.length ? table(title, columns, rows) : nothing("None.", without));
}

function tool(one) {
  const names = Object.keys(one.parameters.properties ?? {});
  return [one.name, one.description, one.requires_approval ? "required" : "", names.join(", ")];
}

/** Whether a key works, in words. */
export function keyState({ revoked_at: revoked, expires_at: expires }) {
  if (revoked) return "revoked";
  return expires ? `${Date.parse(expires) > Date.now() ? "works until" : "expired"} ${expires.slice(0, 10)}` : "works";
}

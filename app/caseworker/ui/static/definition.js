// One registered agent or graph, in any of its versions.

import { runDefinition } from "./actions.js";
import { get, refusal, root } from "./api.js";
import { card, fill, h, shown, table } from "./dom.js";
import { ago, count, instant } from "./format.js";
import { stepGraph } from "./step_graph.js";
import { newChat } from "./threads.js";

const NOTHING = new Map();

export async function show({ main, params: [what, name], query, signal, go }) {
  const path = `/${what}/${encodeURIComponent(name)}`;
  const version = query.get("version");
  const [one, { [what]: versions }, refused] = await Promise.all([
    get(version ? `${path}/versions/${encodeURIComponent(version)}` : path, {}, signal),
    get(`${path}/versions`, { limit: 50 }, signal),
    refusal("run"),
  ]);
  document.title = `${name} · Caseworker`;
  const pick = h("select", { "aria-label": "Version", on: { change: () => go(`${root}/ui${path}?version=${pick.value}`) } },
    versions.map((each) => h("option", { value: each.version, selected: each.version === one.version }, `@${each.version}`)));
  fill(main,
    h("div", { class: "page-head" }, h("h1", {}, one.name), pick,
      h("span", { class: "muted" }, `registered ${instant(one.created_at)}`),
      h("div", { class: "end" },
        refused && h("span", { class: "muted" }, refused),
        h("a", { href: `${root}/ui?${what === "agents" ? "agent" : "kind=graph&q"}=${encodeURIComponent(name)}` }, "Its runs"),
        h("button", { type: "button", disabled: refused, on: { click: () => newChat(go, `${what}/${name}`) } }, "Chat…"),
        h("button", { type: "button", class: "primary", disabled: refused, on: { click: () => runDefinition(one, what, go) } }, "Run…"))),
    one.description && h("p", {}, one.description),
    one.shape ? card("Steps", stepGraph(one.shape, NOTHING, () => {})) : agent(one.agent),
    h("details", { class: "card" }, h("summary", {}, "Definition"), shown(one.graph ?? one.agent)),
    card("Versions", table("Versions", [["Version", ""], ["Registered", "minor"], ["Bytes", "number"], ["SHA-256", "mono cut"]],
      versions.map((each) => [
        h("a", { href: `${root}/ui${path}?version=${each.version}` }, `@${each.version}`),
        ago(each.created_at), count(each.size_bytes), each.sha256,
      ]))));
}

function agent(definition) {
  const { prompt = {}, tools = [], limits = {}, model = {}, code } = definition;
  return h("div", { class: "columns" },
    card("Prompt", Object.entries(prompt).map(([name, text]) => [h("h3", {}, name), shown(text)])),
    h("div", { class: "stack" },
      card("Model", shown(code ? { code } : model.name ? model : { tier: "small", ...model })),
      card("Tools", tools.length ? h("ul", { class: "tries" }, tools.map((one) => h("li", {}, toolName(one)))) : h("p", { class: "muted" }, "None.")),
      card("Limits", Object.keys(limits).length ? shown(limits) : h("p", { class: "muted" }, "No limits of its own."))));
}

function toolName(one) {
  if (typeof one === "string") return one;
  const [kind, value] = Object.entries(one)[0];
  return `${kind}: ${typeof value === "string" ? value : value.name ?? JSON.stringify(value)}${one.allow ? ` (${one.allow.join(", ")})` : ""}${one.requires_approval ? " · requires approval" : ""}`;
}

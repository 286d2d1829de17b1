// What a run may spend and has spent, and where its time and money went.

import { card, h, table } from "./dom.js";
import { amount, count, counted, duration, LIMITS, money } from "./format.js";

const NEAR = 0.7;

/** Returns a gauge for every limit that is set; those near or hit say so in words. */
export function gauges(run) {
  const usage = run.usage ?? {};
  const set = Object.entries(run.limits).filter(([name, limit]) => limit !== null && LIMITS[name]);
  const found = set.map(([name, limit]) => {
    const [title, dimension] = LIMITS[name];
    const used = usage[dimension] ?? 0;
    const hit = run.stop?.kind === "budget" && run.stop.dimension === dimension;
    return { title, dimension, used, limit, hit, share: limit ? used / limit : hit ? 1 : 0 };
  });
  found.sort((a, b) => b.hit - a.hit || b.share - a.share);
  if (!found.length) return card("Budget", h("p", { class: "muted" }, "This run has no limits."));
  return card("Budget", h("div", { class: "gauges" }, found.map(gauge)));
}

function gauge({ title, dimension, used, limit, hit, share }) {
  const full = share >= 1;
  const state = hit ? "hit" : share >= NEAR ? "near" : "fine";
  const note = hit ? "stopped the run" : full ? "exhausted" : share >= NEAR ? `${Math.floor(share * 100)} %` : null;
  const text = `${amount(dimension, used)} of ${amount(dimension, limit)}`;
  return h("div", { class: `gauge gauge-${state}` },
    h("div", { class: "gauge-head" },
      h("span", {}, title, note && h("span", { class: `tag ${hit ? "tag-bad" : "tag-warn"}` }, note)),
      h("strong", {}, text)),
    h("meter", { min: 0, max: 1, value: Math.min(share, 1), "aria-label": `${title}: ${text}` }));
}

/** Returns what the calls of each model cost, charged and estimated apart. */
export function models(analysis) {
  const rows = analysis.cost_by_model;
  if (!rows.length) return card("Models", h("p", { class: "muted" }, "No model calls."));
  const cells = rows.map((one) => [
    one.model, one.tier ?? "–", count(one.count), count(one.tokens_in), count(one.tokens_out),
    one.cost_usd === null ? "unknown" : money(one.cost_usd - one.cost_usd_estimated), money(one.cost_usd_estimated),
  ]);
  return card("Tokens and cost by model", table("Cost by model",
    [["Model", "nowrap"], ["Tier", ""], ["Calls", "number"], ["Tokens in", "number"], ["Tokens out", "number"], ["Charged", "number"], ["Estimated", "number"]],
    cells));
}

/** Returns where the time went. */
export function times(analysis) {
  const all = analysis.time.reduce((sum, one) => sum + one.own_ms, 0) || 1;
  const cells = analysis.time.slice(0, 15).map((one) => [
    one.name, one.kind, one.model ?? "", count(one.count), duration(one.own_ms), share(one.own_ms / all),
  ]);
  return card("Where the time went", table("Where the time went",
    [["Call", "cut"], ["Kind", ""], ["Model", "nowrap"], ["Calls", "number"], ["Own time", "number"], ["Share", ""]], cells));
}

/** Returns the critical path, its longest stretches first. */
export function critical(analysis, tree, select) {
  const whole = analysis.critical_path.reduce((sum, one) => sum + one.duration_ms, 0) || 1;
  const longest = [...analysis.critical_path].sort((a, b) => b.duration_ms - a.duration_ms).slice(0, 15);
  const cells = longest.map((one) => [
    h("button", { type: "button", class: "link", on: { click: () => select(one.node_id) } }, tree.byId.get(one.node_id)?.title ?? one.name),
    duration(one.after_ms), duration(one.duration_ms), share(one.duration_ms / whole),
  ]);
  return card(`Critical path: ${counted(analysis.critical_path.length, "segment")}`, table("Critical path",
    [["Call", "cut"], ["After", "number"], ["Alone for", "number"], ["Share", ""]], cells));
}

function share(part) {
  const percent = Math.round(part * 100);
  return h("span", { class: "share" }, h("progress", { max: 1, value: part, "aria-label": `${percent} percent` }), `${percent} %`);
}

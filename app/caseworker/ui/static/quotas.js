// What a tenant may have at once and spend, and what it has used of that.

import { ApiError, get, root } from "./api.js";
import { card, fill, h, nothing, since } from "./dom.js";
import { count, money } from "./format.js";

export async function show({ main, query, signal, go }) {
  const tenant = query.get("tenant");
  const field = h("input", { id: "tenant", value: tenant ?? "", required: true, pattern: "[A-Za-z0-9._\\-]{1,64}" });
  const form = h("form", { class: "filters", on: { submit: (event) => {
    event.preventDefault();
    go(`${root}/ui/quotas?tenant=${encodeURIComponent(field.value)}`);
  } } }, h("label", { for: "tenant" }, "Tenant", field), h("button", {}, "Show"));
  const place = h("div", { class: "stack" });
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Quotas")), place,
    h("details", { open: tenant !== null }, h("summary", {}, "Another tenant"), form));
  try {
    fill(place, content(await get(tenant === null ? "/quotas" : `/quotas/${encodeURIComponent(tenant)}`, {}, signal)));
  } catch (error) {
    if (!(error instanceof ApiError) || error.status === 401) throw error;
    fill(place, nothing("The quota cannot be shown.", error.message));
  }
}

function content(quota) {
  const { use } = quota;
  const gauges = [
    gauge("Running now", use.running, quota.max_running, count),
    gauge("Waiting in the queue", use.queued, quota.max_queued, count),
    gauge("Spent today (UTC)", use.cost_usd_today, quota.max_cost_usd_per_day, money, use.reserved_usd_today),
    gauge("Spent this month", use.cost_usd_this_month, quota.max_cost_usd_per_month, money, use.reserved_usd_this_month),
    gauge("Stored bytes", use.stored_bytes, quota.max_stored_bytes, count),
    gauge("Versions of graphs and agents", use.definitions, quota.max_definitions, count),
    gauge("Threads", use.threads, quota.max_threads, count),
  ];
  return card(quota.tenant,
    h("div", { class: "gauges" }, gauges),
    h("p", { class: "muted" }, `Runs accepted per minute: ${quota.max_runs_per_minute === null ? "unlimited" : `at most ${count(quota.max_runs_per_minute)}`}. `,
      quota.is_default ? "This is the configured default quota." : ["Set for this tenant", quota.updated_at && [" ", since(quota.updated_at)], "."]));
}

function gauge(title, used, limit, shown, reserved = 0) {
  const share = limit ? (used + reserved) / limit : 0;
  const text = limit === null ? `${shown(used)} (no limit)` : `${shown(used)} of ${shown(limit)}`;
  return h("div", { class: `gauge gauge-${share >= 1 ? "hit" : share >= 0.7 ? "near" : "fine"}` },
    h("div", { class: "gauge-head" }, h("span", {}, title, share >= 1 && h("span", { class: "tag tag-bad" }, "exhausted")), h("strong", {}, text)),
    limit === null ? null : h("meter", { min: 0, max: 1, value: Math.min(share, 1), "aria-label": `${title}: ${text}` }),
    reserved ? h("small", { class: "muted" }, `${shown(reserved)} more reserved by runs at work`) : null);
}

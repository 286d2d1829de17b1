// A standing key: its budgets, and what each of its sessions has spent and reserved.

import { get, pause, root, runPath } from "./api.js";
import { announce, card, fill, h, nothing, s, since, table } from "./dom.js";
import { amount, count, counted, duration, LIMITS, money } from "./format.js";
import { ENDED, badge } from "./status.js";
import { keyState } from "./catalog.js";

const REFRESH_MS = 2500;
const PAGE = 50;
const NEAR = 0.7;
const COLUMNS = [["Session", "cut"], ["Client", "minor"], ["Newest run", "nowrap"], ["Spent", "number"], ["Reserved", "number"], ["Limit", "nowrap"], ["Refused", "number"], ["Last call", "minor"]];

export async function show({ main, params: [id], signal }) {
  const path = `/keys/${encodeURIComponent(id)}`;
  const live = h("span", { class: "live" }, "Live");
  const about = h("div", { class: "stack" });
  const list = h("section", { class: "card list" });
  const pager = h("div", { class: "pager" });
  const load = (cursor) => get(`${path}/sessions`, { limit: PAGE, cursor }, signal);
  let pages = [];
  let drawn = "";

  const draw = (key) => {
    const text = JSON.stringify([key, pages]);
    if (text === drawn) return;
    drawn = text;
    const sessions = pages.flatMap((page) => page.sessions);
    fill(about, facts(key), h("div", { class: "glance" },
      budget("All sessions, this UTC day", key.budget_per_day, key.day), budget("All sessions, this UTC month", key.budget_per_month, key.month)));
    fill(list, sessions.length ? table("Sessions", COLUMNS, sessions.map((one) => row(one, key.budget ?? {})))
      : nothing("No sessions.", "The first call of a session opens a run."));
    const next = pages.at(-1).next_cursor;
    fill(pager, counted(sessions.length, "session"), next && h("button", { type: "button", on: { click: async (event) => {
      event.target.disabled = true;
      pages = [...pages, await load(next)];
      draw(key);
      announce(`${pages.flatMap((page) => page.sessions).length} sessions shown.`);
    } } }, "Older sessions"));
  };

  let key = await get(path, {}, signal);
  fill(main, h("div", { class: "page-head" }, h("h1", {}, key.name), h("div", { class: "end" }, live)), about);
  if (key.kind !== "agent") {
    fill(live, "");
    fill(about, facts(key));
    return;
  }
  pages = [await load()];
  main.append(h("h2", {}, "Sessions"), list, pager);
  draw(key);
  for (;;) {
    await pause(document.hidden ? REFRESH_MS * 4 : REFRESH_MS, signal);
    if (signal.aborted) return;
    try {
      key = await get(path, {}, signal);
      const first = pages.length === 1 ? [await load()] : pages;
      if (pages.length === 1) pages = first;
      live.classList.toggle("off", pages.length > 1);
      fill(live, pages.length > 1 ? "Sessions are paused while older ones are shown" : "Live");
    } catch (error) {
      if (signal.aborted || error.status === 401) return;
      live.classList.add("off");
      fill(live, "The service does not respond");
    }
    if (!signal.aborted) draw(key);
  }
}

function facts(key) {
  const models = key.models === null ? "all" : Array.isArray(key.models) ? key.models.join(", ")
    : Object.entries(key.models).map(([name, model]) => `${name} → ${model}`).join(", ");
  const of = key.kind !== "agent" ? [["Scopes", key.scopes.join(", ")]] : [
    ["Models", models],
    ["Idle time of a run", duration(key.idle_seconds * 1000)],
    ["New sessions in an hour", `at most ${count(key.max_sessions_per_hour)}`],
    ["Open sessions", `at most ${count(key.max_open_sessions)}`],
    ["Refused calls", [`${count(key.day.refused)} today`, h("small", {}, `${count(key.month.refused)} this month`)]],
  ];
  const all = [["State", keyState(key)], ["ID", h("code", {}, key.key_id)], ["Tenant", key.tenant], ["Created", [since(key.created_at), h("small", {}, `by ${key.created_by}`)]], ...of];
  return card("Key", h("dl", { class: "facts" }, all.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))));
}

function budget(title, limits, use) {
  const set = limitsIn(limits);
  if (!set.length) {
    return card(title, h("p", { class: "muted" }, `No limit. Spent ${money(use.used.cost_usd)}, ${counted(use.used.llm_calls, "model call")}; reserved ${money(use.reserved.cost_usd)}.`));
  }
  return card(title, h("div", { class: "gauges" }, set.map((one) => gauge(one, use))));
}

function gauge([name, limit], { used, reserved }) {
  const [title, dimension] = LIMITS[name];
  const [spent, held] = [used[dimension], reserved[dimension]];
  const text = `${amount(dimension, spent)} of ${amount(dimension, limit)}`;
  const label = `${title}: ${text}, ${amount(dimension, held)} reserved`;
  return h("div", { class: `gauge gauge-${state(spent, limit)}` },
    h("div", { class: "gauge-head" }, h("span", {}, title, tag(spent, limit)), h("strong", {}, text)),
    bar(spent, held, limit, label),
    h("small", { class: "muted" }, held ? `${amount(dimension, held)} reserved by calls in flight` : "nothing reserved"));
}

/** A bar of what is spent, and next to it what is reserved. */
function bar(spent, held, limit, label) {
  const share = (value) => (limit ? Math.min(value / limit, 1) * 100 : value > 0 || !limit ? 100 : 0);
  const [first, both] = [share(spent), share(spent + held)];
  return s("svg", { class: "spend", viewBox: "0 0 100 6", preserveAspectRatio: "none", role: "img", "aria-label": label },
    s("rect", { class: "spend-reserved", width: both, height: 6 }), s("rect", { class: "spend-used", width: limit ? first : both, height: 6 }));
}

function row(session, limits) {
  const { used, reserved } = session;
  const set = limitsIn(limits);
  const name = session.name ?? (session.session ? h("span", { class: "muted", title: "Its run was deleted." }, session.session) : h("span", { class: "muted" }, "unnamed, today"));
  const run = session.status === null ? "–" : [badge(session.status), " ", h("a", { href: `${root}/ui${runPath(session.run_id)}`, title: session.run_id }, ENDED.has(session.status) ? "last run" : "open run")];
  return [
    h("span", { title: session.name }, name),
    h("span", { title: session.user_agent }, (session.user_agent ?? "–").split(" ")[0].slice(0, 40)),
    run,
    [money(used.cost_usd), h("small", { class: "below" }, counted(used.llm_calls, "call"))],
    money(reserved.cost_usd),
    set.length ? set.map((one) => ofLimit(one, session)) : "unlimited",
    session.refused ? h("span", { class: "tag tag-warn" }, count(session.refused)) : "0",
    session.last_call_at ? since(session.last_call_at) : "–",
  ];
}

function ofLimit([name, limit], { used, reserved }) {
  const [title, dimension] = LIMITS[name];
  const spent = used[dimension];
  const text = dimension === "cost_usd" ? money(limit) : `${count(limit)} ${title.toLowerCase()}`;
  return h("div", { class: `limit gauge-${state(spent, limit)}` }, h("span", {}, text, tag(spent, limit)), bar(spent, reserved[dimension], limit, `${title}: ${amount(dimension, spent)} of ${amount(dimension, limit)}`));
}

function limitsIn(limits) {
  return Object.entries(limits ?? {}).filter(([name, limit]) => limit !== null && LIMITS[name]);
}

function state(spent, limit) {
  return spent >= limit ? "hit" : spent / limit >= NEAR ? "near" : "fine";
}

function tag(spent, limit) {
  const now = state(spent, limit);
  if (now === "fine") return null;
  return h("span", { class: `tag ${now === "hit" ? "tag-bad" : "tag-warn"}` }, now === "hit" ? "exhausted" : `${Math.floor((spent / limit) * 100)} %`);
}

// The list of runs: filters, search, pages, and what changes while one looks.

import { ApiError, get, pause, root, runPath } from "./api.js";
import { announce, fill, h, nothing, table } from "./dom.js";
import { ago, between, count, counted, duration, instant, money } from "./format.js";
import { badge, ENDED, KINDS, STATUSES, words } from "./status.js";

const REFRESH_MS = 2500;
const PAGE = 50;
/** How many runs are looked through at once for a part of an id. */
const SEARCHED = 200;
const COLUMNS = [
  ["Run", ""], ["Status", ""], ["Kind", "wide"], ["What", "wide cut"], ["Created", "minor"],
  ["Time", "number"], ["Tokens", "number wide"], ["Cost", "number"],
];

export async function show({ main, query, signal, go }) {
  const filters = form(query, (wanted) => go(`${root}/ui${wanted}`, { replace: true }));
  const live = h("span", { class: "live" }, "Live");
  const asked = h("div", {});
  const list = h("section", { class: "card list", "aria-label": "Runs" });
  const pager = h("div", { class: "pager" });
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Runs"), h("div", { class: "end" }, live)), asked, filters, list, pager);

  const path = query.get("q");
  const known = new Map();
  let pages = [];

  async function load(cursor) {
    const named = path && !path.includes("=");
    const page = await get("/runs", { ...wanted(query), limit: named ? SEARCHED : PAGE, cursor }, signal);
    if (!named) return page;
    const runs = page.runs.filter((run) => run.run_id.includes(path));
    const older = !cursor && page.next_cursor && !runs.some((run) => run.run_id === path) ? await byId(path, signal) : [];
    return { ...page, runs: [...older, ...runs], looked: page.runs.length };
  }

  function draw() {
    const runs = pages.flatMap((page) => page.runs);
    if (!runs.length) {
      fill(list, nothing(query.size ? "No matching runs." : "No runs.",
        query.size ? "Remove a filter to see more." : h("code", {}, 'curl -X POST …/runs -d \'{"input": "What is 6 * 7?"}\'')));
    } else {
      const fresh = known.size > 0;
      fill(list, table("Runs", COLUMNS, runs.map(row)));
      if (fresh) {
        const rows = list.querySelectorAll("tbody tr");
        runs.forEach((run, at) => known.get(run.run_id) !== run.status && rows[at].classList.add("fresh"));
      }
      for (const run of runs) known.set(run.run_id, run.status);
    }
    const next = pages.at(-1).next_cursor;
    const looked = pages.reduce((sum, page) => sum + (page.looked ?? 0), 0);
    fill(pager, h("span", {}, counted(runs.length, "run"), looked ? ` among the newest ${count(looked)}` : ""), next &&
      h("button", { type: "button", on: { click: async (event) => {
        event.target.disabled = true;
        pages = [...pages, await load(next)];
        draw();
        announce(`${runs.length} runs shown.`);
      } } }, "Older runs"));
  }

  pages = [await load()];
  draw();
  waiting(asked, signal);
  for (;;) {
    await pause(document.hidden ? REFRESH_MS * 4 : REFRESH_MS, signal);
    if (signal.aborted) return;
    if (pages.length > 1) {
      live.classList.add("off");
      fill(live, "Paused while older runs are shown");
      continue;
    }
    try {
      const first = await load();
      live.classList.remove("off");
      fill(live, "Live");
      if (signal.aborted) return;
      if (JSON.stringify(first) !== JSON.stringify(pages[0]) && pages.length === 1) {
        pages = [first];
        draw();
      }
      waiting(asked, signal);
    } catch (error) {
      if (signal.aborted || error.status === 401) return;
      live.classList.add("off");
      fill(live, "The service does not respond");
    }
  }
}

/** A run that is named in the search; none if there is no such run. */
async function byId(id, signal) {
  try {
    return [await get(runPath(id), {}, signal)];
  } catch (error) {
    if (error instanceof ApiError && (error.status === 404 || error.status === 422)) return [];
    throw error;
  }
}

function wanted(query) {
  const names = ["status", "kind", "agent", "thread_id", "created_after", "created_before"];
  const found = Object.fromEntries(names.map((name) => [name, query.get(name)]));
  for (const name of ["created_after", "created_before"]) {
    if (found[name]) found[name] = new Date(found[name]).toISOString();
  }
  for (const pair of (query.get("q") ?? "").split(/\s+(?=[^\s=]+=)/)) {
    const [key, ...value] = pair.split("=");
    if (value.length) found[`metadata.${key.trim().replace(/^metadata\./, "")}`] = value.join("=").trim();
  }
  return found;
}

function form(query, changed) {
  const select = (name, title, values) =>
    h("label", {}, title, h("select", { name },
      h("option", { value: "" }, "All"),
      values.map((value) => h("option", { value, selected: query.get(name) === value }, value))));
  const input = (name, title, more) => h("label", {}, title, h("input", { name, value: query.get(name) ?? "", ...more }));
  const fields = h("form", { class: "filters", role: "search", "aria-label": "Runs" },
    input("q", "Search", { type: "search", placeholder: "run id or part of it, key=value …" }),
    select("status", "Status", STATUSES),
    select("kind", "Kind", KINDS),
    input("agent", "Agent", { type: "text", placeholder: "name" }),
    input("created_after", "After", { type: "datetime-local" }),
    input("created_before", "Before", { type: "datetime-local" }),
    query.size ? h("button", { type: "reset" }, "Clear") : null);
  const apply = () => {
    const given = new URLSearchParams([...new FormData(fields)].filter(([, value]) => value));
    changed(given.size ? `?${given}` : "");
  };
  fields.addEventListener("change", apply);
  fields.addEventListener("submit", (event) => {
    event.preventDefault();
    apply();
  });
  fields.addEventListener("reset", () => changed(""));
  return fields;
}

function row(run) {
  const usage = run.usage;
  const named = run.agent ?? run.graph;
  const who = named ? `${named.name}${named.version ? ` @${named.version}` : ""}` : meta(run.metadata);
  const about = [who, run.input].filter(Boolean).join(" · ");
  return [
    h("a", { class: "row-link", href: `${root}/ui${runPath(run.run_id)}` }, run.run_id),
    badge(run.status),
    run.kind,
    [about, run.thread_id && [about && " · ", h("a", { href: `${root}/ui/threads/${encodeURIComponent(run.thread_id)}` }, run.thread_id)],
      run.finish_reason && run.finish_reason !== "success" ? h("span", { class: "tag" }, words(run.finish_reason)) : null],
    h("time", { datetime: run.created_at, title: instant(run.created_at) }, ago(run.created_at)),
    run.started_at ? duration(between(run.started_at, run.finished_at)) : "–",
    usage ? count(usage.tokens) : "–",
    usage ? money(usage.cost_usd) : ENDED.has(run.status) ? "–" : "…",
  ];
}

function meta(values) {
  return Object.entries(values).slice(0, 3).map(([key, value]) =>
    `${key}=${typeof value === "object" ? JSON.stringify(value) : value}`).join(" · ");
}

async function waiting(place, signal) {
  const { approvals } = await get("/approvals", { limit: 20 }, signal).catch(() => ({ approvals: [] }));
  if (signal.aborted || place.dataset.shown === JSON.stringify(approvals)) return;
  place.dataset.shown = JSON.stringify(approvals);
  fill(place, approvals.length ? h("div", { class: "banner banner-waiting" },
    badge("waiting"),
    h("span", {}, `${counted(approvals.length, "approval")} to decide: `,
      approvals.slice(0, 6).map((one, at) => [at ? ", " : "", h("a", { href: `${root}/ui${runPath(one.run_id)}` }, one.subject)]))) : null);
}

// The list of runs: filters, search, pages, and what changes while one looks.

import { ApiError, get, pause, root, runPath } from "./api.js";
import { announce, fill, h, nothing, since, table } from "./dom.js";
import { between, count, counted, duration, money } from "./format.js";
import { badge, ENDED, KINDS, STATUSES, words } from "./status.js";

const REFRESH_MS = 2500;
const PAGE = 50;
/** How many runs are looked through at once for a part of an id, or a graph. */
const SEARCHED = 200;
/** Columns that can be chosen: title, class, whether they are shown at first, and the cell of a run. */
const COLUMNS = {
  kind: ["Kind", "", false, (run) => run.kind],
  name: ["Agent or graph", "cut", true, who],
  input: ["Input", "cut more", true, (run) => h("span", { title: run.input }, run.input ?? "")],
  metadata: ["Metadata", "cut", true, metadataOf],
  created: ["Created", "minor", true, (run) => since(run.created_at)],
  time: ["Time", "number", true, (run) => (run.started_at ? duration(between(run.started_at, run.finished_at)) : "–")],
  tokens: ["Tokens", "number", false, (run) => (run.usage ? count(run.usage.tokens) : "–")],
  cost: ["Cost", "number", true, (run) => (run.usage ? money(run.usage.cost_usd) : ENDED.has(run.status) ? "–" : "…")],
};
const BEFORE_METADATA = ["kind", "name", "input", "metadata"];
const KEPT = "caseworker.columns";
const MAX_KEYS = 40;

export async function show({ main, query, signal, go }) {
  const filters = form(query, (wanted) => go(`${root}/ui${wanted}`, { replace: true }));
  const live = h("span", { class: "live" }, "Live");
  const asked = h("div", { class: "stack" });
  const list = h("section", { class: "card list" });
  const pager = h("div", { class: "pager" });
  const chosen = new Set(query.has("column") ? query.getAll("column") : kept());
  const chooser = columnChooser(chosen, () => {
    query.delete("column");
    for (const one of chosen.size ? chosen : [""]) query.append("column", one);
    localStorage.setItem(KEPT, JSON.stringify([...chosen]));
    history.replaceState(null, "", `?${query}`);
    draw();
  });
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Runs"), h("div", { class: "end" }, live, chooser.element)), asked, filters, list, pager);

  const path = query.get("q");
  const known = new Map();
  let pages = [];

  async function load(cursor) {
    const named = path && !path.includes("=");
    const page = await get("/runs", { ...wanted(query), limit: named ? SEARCHED : PAGE, cursor }, signal);
    if (!named) return page;
    const runs = page.runs.filter((run) => run.run_id.includes(path) || run.graph?.name === path);
    const older = !cursor && page.next_cursor && !runs.some((run) => run.run_id === path) ? await byId(path, signal) : [];
    return { ...page, runs: [...older, ...runs], looked: page.runs.length };
  }

  function draw() {
    const runs = pages.flatMap((page) => page.runs);
    chooser.offer(runs);
    if (!runs.length) {
      fill(list, nothing(filtered(query) ? "No matching runs." : "No runs.",
        filtered(query) ? "Remove a filter to see more." : h("code", {}, 'curl -X POST …/runs -d \'{"input": "What is 6 * 7?"}\'')));
    } else {
      const fresh = known.size > 0;
      const columns = shownColumns(chosen, runs);
      fill(list, table("Runs", [["Run", "id"], ["Status", "nowrap"], ...columns], runs.map((run) => [
        h("a", { class: "row-link", title: run.run_id, href: `${root}/ui${runPath(run.run_id)}` }, run.run_id),
        [badge(run.status), run.finish_reason && run.finish_reason !== "success" ? h("span", { class: "tag" }, words(run.finish_reason)) : null],
        ...columns.map(([, , cell]) => cell(run))])));
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
    input("q", "Search", { type: "search", placeholder: "run id or part of it, graph, key=value …" }),
    select("status", "Status", STATUSES),
    select("kind", "Kind", KINDS),
    input("agent", "Agent", { type: "text", placeholder: "name" }),
    input("created_after", "After", { type: "datetime-local" }),
    input("created_before", "Before", { type: "datetime-local" }),
    filtered(query) ? h("button", { type: "reset" }, "Clear") : null);
  const apply = () => {
    const given = new URLSearchParams([...new FormData(fields)].filter(([, value]) => value));
    for (const one of query.getAll("column")) given.append("column", one);
    changed(given.size ? `?${given}` : "");
  };
  fields.addEventListener("change", apply);
  fields.addEventListener("submit", (event) => {
    event.preventDefault();
    apply();
  });
  fields.addEventListener("reset", () => {
    for (const name of new Set(query.keys())) if (name !== "column") query.delete(name);
    changed(query.size ? `?${query}` : "");
  });
  return fields;
}

function filtered(query) {
  return [...query.keys()].some((name) => name !== "column");
}

/** The columns that were chosen last; those that are shown at first if none were. */
function kept() {
  const usual = Object.keys(COLUMNS).filter((name) => COLUMNS[name][2]);
  return JSON.parse(localStorage.getItem(KEPT)) ?? usual;
}

/** Title, class and cell of the chosen columns: a name in COLUMNS, or `metadata.` and a key. */
function shownColumns(chosen, runs) {
  const some = runs.some((run) => Object.keys(run.metadata).length);
  const fixed = (names) => names.filter((name) => chosen.has(name) && (some || name !== "metadata")).map((name) => [COLUMNS[name][0], COLUMNS[name][1], COLUMNS[name][3]]);
  const keys = [...chosen].filter((name) => name.startsWith("metadata.")).map((name) => name.slice("metadata.".length));
  const after = Object.keys(COLUMNS).filter((name) => !BEFORE_METADATA.includes(name));
  return [...fixed(BEFORE_METADATA), ...keys.map((key) => [key, "cut", (run) => plain(run.metadata[key])]), ...fixed(after)];
}

/** A menu of columns; `offer` adds the metadata keys of runs to it. */
function columnChooser(chosen, changed) {
  const option = (name, title) => h("label", {}, h("input", { type: "checkbox", checked: chosen.has(name), on: { change: (event) => {
    chosen[event.target.checked ? "add" : "delete"](name);
    changed();
  } } }), title);
  const keys = h("fieldset", { hidden: true }, h("legend", {}, "Metadata keys"));
  const offered = new Set();
  const offer = (names) => {
    for (const name of names) {
      if (offered.has(name) || offered.size >= MAX_KEYS) continue;
      offered.add(name);
      keys.append(option(`metadata.${name}`, name));
    }
    keys.hidden = !offered.size;
  };
  offer([...chosen].filter((name) => name.startsWith("metadata.")).map((name) => name.slice("metadata.".length)));
  const element = h("details", { class: "menu" }, h("summary", { class: "button" }, "Columns"), h("div", { class: "menu-panel" },
    h("fieldset", {}, h("legend", {}, "Columns"), Object.entries(COLUMNS).map(([name, [title]]) => option(name, title))), keys));
  return { element, offer: (runs) => offer(runs.flatMap((run) => Object.keys(run.metadata))) };
}

function who(run) {
  const named = run.agent ?? run.graph;
  const name = named ? `${named.name}${named.version ? ` @${named.version}` : ""}` : h("span", { class: "muted" }, run.kind);
  return [name, run.thread_id && [" · ", h("a", { href: `${root}/ui/threads/${encodeURIComponent(run.thread_id)}` }, run.thread_id)]];
}

function metadataOf(run) {
  const text = Object.entries(run.metadata).map(([key, value]) => `${key}=${plain(value)}`).join(" · ");
  return h("span", { title: text }, text);
}

function plain(value) {
  return value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
}

async function waiting(place, signal) {
  const { approvals, next_cursor: more } = await get("/approvals", { limit: 100 }, signal).catch(() => ({ approvals: [] }));
  if (signal.aborted || place.dataset.shown === JSON.stringify(approvals)) return;
  place.dataset.shown = JSON.stringify(approvals);
  const links = (some) => some.map((one, at) => [at ? ", " : "",
    h("a", { title: one.run_id, href: `${root}/ui${runPath(one.run_id)}` }, one.subject, " ", since(one.requested_at))]);
  const newest = approvals.toReversed();
  const rest = newest.slice(3);
  fill(place, newest.length ? h("div", { class: "banner banner-waiting" },
    badge("waiting"),
    h("div", {}, `${counted(newest.length, "approval")}${more ? " or more" : ""} to decide: `, links(newest.slice(0, 3)),
      rest.length > 0 && h("details", {}, h("summary", {}, `${rest.length} more`), links(rest)))) : null);
}

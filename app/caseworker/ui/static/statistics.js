// The overview: how many runs there are, how they end, how long they take and what they cost.

import { get, pause, root } from "./api.js";
import { fill, h, table } from "./dom.js";
import { count, duration, money } from "./format.js";
import { Plot, patterns } from "./plots.js";
import { badge, words } from "./status.js";

const HOUR = 3_600_000;
const DAY = 24 * HOUR;
const REFRESH_MS = 15_000;
const RANGES = {
  "24h": ["24 hours", "hour", 24],
  "7d": ["7 days", "day", 7],
  "30d": ["30 days", "day", 30],
};
/** The statuses from the bottom of a bar to its top. */
const STACKED = ["completed", "failed", "halted", "cancelled", "waiting", "running", "queued"];
const LOOKS = { failed: "slant", halted: "level", cancelled: "dots", waiting: "back" };
const AGENTS = ["", "slant", "", "back", "level", "dots"];

const numbers = Object.assign((value) => count(value), { least: 1 });
const seconds = (value) => (value ? duration(value * 1000).replace(/\.0+ s$/, " s") : "0 s");

export async function show({ main, query, signal }) {
  const name = query.get("range") in RANGES ? query.get("range") : "24h";
  const [title, period, length] = RANGES[name];
  const ranges = h("nav", { class: "segments", "aria-label": "Range of time" }, Object.entries(RANGES).map(([key, [text]]) =>
    h("a", { href: `${root}/ui/overview?range=${key}`, "aria-current": key === name && "true" }, text)));
  const tiles = h("dl", { class: "facts tiles" });
  const failures = h("section", { class: "card" });
  const runs = new Plot("Runs by status", { shown: numbers, note: `by ${period}` });
  const times = new Plot("Duration", { shown: seconds, lines: true, note: `from start to end, by ${period}` });
  const costs = new Plot("Cost by agent", { shown: money, note: `${period === "hour" ? "last 7 days, " : ""}by day in UTC` });
  let previous;
  for (;;) {
    const step = period === "hour" ? HOUR : DAY;
    const starts = slotsUntilNow(step, length);
    const days = slotsUntilNow(DAY, Math.max(7, (length * step) / DAY));
    const since = (start) => new Date(start).toISOString();
    const [found, spent] = await Promise.all([
      get("/statistics", { period, after: since(starts[0]) }, signal),
      get("/spend", { group_by: "agent", period: "day", after: since(days[0]) }, signal).catch((error) => ({ error, items: [] })),
    ]).catch((error) => {
      if (!previous || signal.aborted || error.status === 401) throw error;
      return [];
    });
    if (signal.aborted) return;
    const now = found && JSON.stringify([found.items, found.now, found.failures, spent.items, starts]);
    if (now && now !== previous) {
      fill(tiles, facts(found, title));
      const slots = labels(starts, period);
      const byStart = new Map(found.items.map((one) => [Date.parse(one.start), one]));
      const of = (field, none) => starts.map((start) => byStart.get(start)?.[field] ?? none);
      runs.show({ slots, empty: "No runs were accepted in this time.", series: STACKED.filter((status) => found.total[status]).map((status) =>
        ({ name: words(status), look: status, pattern: LOOKS[status], values: of(status, 0), total: found.total[status] })) });
      times.show({ slots, empty: "No runs ended in this time.", series: [["p50", "Median (p50)"], ["p95", "95th percentile (p95)"]].map(([key, text]) =>
        ({ name: text, look: key, values: of(`${key}_seconds`, null), total: found.total[`${key}_seconds`] ?? undefined })) });
      costs.show({ slots: labels(days, "day"), series: byAgent(spent.items, days), empty: spent.error?.message ?? "Nothing was spent in this time." });
      fill(failures, reasons(found, starts[0]));
    }
    if (!previous) {
      fill(main, h("div", { class: "page-head" }, h("h1", {}, "Overview"), h("div", { class: "end" }, ranges)), patterns(),
        tiles, h("div", { class: "columns even" }, runs.element, failures, times.element, costs.element));
    }
    previous = now ?? previous;
    await pause(document.hidden ? REFRESH_MS * 4 : REFRESH_MS, signal);
    if (signal.aborted) return;
  }
}

/** The starts of the last periods, in milliseconds; periods begin at whole hours or days in UTC. */
function slotsUntilNow(step, length) {
  const last = Math.floor(Date.now() / step) * step;
  return Array.from({ length }, (_, at) => last - (length - 1 - at) * step);
}

function labels(starts, period) {
  const zone = period === "day" ? "UTC" : undefined;
  const format = (options) => new Intl.DateTimeFormat(undefined, { timeZone: zone, hourCycle: "h23", ...options });
  const day = format({ month: "short", day: "numeric" });
  const clock = format({ hour: "2-digit", minute: "2-digit" });
  const long = format({ weekday: "short", month: "short", day: "numeric" });
  const hours = period === "hour";
  return starts.map((start) => ({
    short: hours ? clock.format(start) : day.format(start),
    long: hours ? `${long.format(start)}, ${clock.format(start)}–${clock.format(start + HOUR)}` : `${long.format(start)} (UTC)`,
  }));
}

function facts({ now, total }, title) {
  const ended = total.completed + total.failed + total.halted;
  const link = (status, number) => h("a", { href: `${root}/ui?status=${status}` }, count(number));
  return [
    ["Running now", link("running", now.running)],
    ["Queued now", link("queued", now.queued)],
    ["Waiting now", link("waiting", now.waiting), "for an approval"],
    ["Runs", count(total.runs), `in the last ${title}`],
    ["Completed", ended ? `${((total.completed / ended) * 100).toFixed(1)} %` : "–", "of those that completed, failed or were halted"],
    ["Median duration", total.p50_seconds === null ? "–" : seconds(total.p50_seconds), total.p95_seconds !== null && `95 % within ${seconds(total.p95_seconds)}`],
  ].map(([term, value, small]) => h("div", {}, h("dt", {}, term), h("dd", {}, value, small && h("small", {}, small))));
}

/** The costs of the agents that spent most, and of all other runs. */
function byAgent(items, days) {
  const keys = new Map();
  for (const { key, cost_usd } of items) keys.set(key, (keys.get(key) ?? 0) + cost_usd);
  const most = [...keys].filter(([key, cost]) => key !== null && cost).sort((a, b) => b[1] - a[1]).slice(0, AGENTS.length).map(([key]) => key);
  const spent = (fits) => {
    const values = days.map((start) => items.filter((one) => fits(one.key) && Date.parse(one.period) === start).reduce((sum, one) => sum + one.cost_usd, 0));
    return { values, total: values.reduce((sum, one) => sum + one, 0) };
  };
  return [
    ...most.map((key, at) => ({ name: key, look: `agent${at}`, pattern: AGENTS[at], ...spent((one) => one === key) })),
    { name: "other runs", look: "rest", ...spent((one) => !most.includes(one)) },
  ].filter(({ total }) => total);
}

function reasons({ failures, total }, start) {
  const local = new Date(start - new Date(start).getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
  const most = failures[0]?.runs;
  const rows = failures.map(({ status, kind, detail, runs }) => [
    h("a", { href: `${root}/ui?status=${status}&created_after=${local}` }, badge(status)),
    [words(kind ?? "unknown"), detail && [": ", h("span", { class: "mono" }, detail)]],
    h("span", { class: "share" }, h("progress", { max: most, value: runs, "aria-hidden": "true" }), count(runs)),
  ]);
  return [h("h2", {}, "Failures by reason"), rows.length ? table("Failures by reason", [["Status", ""], ["Reason", ""], ["Runs", "number"]], rows)
    : h("p", { class: "plot-empty muted" }, total.runs ? "No run failed or was halted in this time." : "No runs were accepted in this time.")];
}

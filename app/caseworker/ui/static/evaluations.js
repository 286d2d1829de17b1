// Reports of `caseworker eval`: one metrics.json, or two side by side. They never leave the browser.

import { root, runPath } from "./api.js";
import { card, fill, h, nothing, shown, since, table } from "./dom.js";
import { amount, count, counted, duration, instant, money } from "./format.js";
import { words } from "./status.js";

const MAX_BYTES = 50_000_000;
const seconds = (value) => (value === null ? "–" : duration(value * 1000));
const percent = (value) => (value === null ? "–" : `${(value * 100).toFixed(1)} %`);
const mean = (value) => (value === null ? "–" : value.toLocaleString("en-US", { maximumFractionDigits: 2 }));

const FIGURES = [
  ["success@1", "Success at first try", percent, 1],
  ["escalation_rate", "Escalated to the big model", percent, -1],
  ["p95_latency_easy", "Easy cases, 95th percentile", seconds, -1],
  ["avg_llm_small", "Small model calls per case", mean, -1],
  ["avg_llm_big", "Big model calls per case", mean, -1],
  ["avg_tool_calls", "Tool calls per case", mean, -1],
  ["avg_act_steps", "ACT steps per case", mean, -1],
  ["mean_tokens_per_case", "Tokens per case", mean, -1],
  ["mean_cost_usd_per_case", "Cost per case", (value) => (value === null ? "unknown" : money(value)), -1],
];
const COUNTS = [
  ["cases", "cases"], ["trials", "trials"], ["succeeded", "succeeded"], ["verified", "verified"],
  ["falsely_verified", "falsely verified"], ["escalated", "escalated"], ["errors", "errors"],
];

export function show({ main }) {
  const reports = [];
  const place = h("div", { class: "stack" });
  const message = h("p", { class: "problem", role: "alert" });
  const chooser = h("input", { type: "file", id: "reports", accept: ".json,application/json", multiple: true, on: { change: () => take(chooser.files) } });
  const drop = h("div", { class: "drop", on: {
    dragover: (event) => { event.preventDefault(); drop.classList.add("over"); },
    dragleave: () => drop.classList.remove("over"),
    drop: (event) => { event.preventDefault(); drop.classList.remove("over"); take(event.dataTransfer.files); },
  } },
    h("label", { for: "reports" }, "Choose one metrics.json, or an earlier and a later one to compare"), chooser,
    h("p", {}, h("code", {}, "caseworker eval"), " writes them. The files stay in this browser."), message);
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Evaluations")), drop, place);
  draw();

  async function take(files) {
    fill(message);
    for (const file of files) {
      try {
        if (file.size > MAX_BYTES) throw new Error("the file is too large");
        const metrics = JSON.parse(await file.text());
        if (typeof metrics?.format !== "number" || !Array.isArray(metrics.cases)) throw new Error("the file is not the metrics.json of an evaluation");
        reports.push({ name: file.name, metrics });
      } catch (error) {
        fill(message, `${file.name}: ${error.message}`);
      }
    }
    reports.splice(0, reports.length - 2);
    draw();
  }

  function draw() {
    drop.classList.toggle("small", reports.length > 0);
    const [earlier, later] = reports.length === 2 ? reports : [null, reports[0]];
    if (!later) return fill(place, introduction());
    if (earlier && earlier.metrics.format !== later.metrics.format) {
      return fill(place, nothing("These reports have different formats and cannot be compared."));
    }
    return fill(place, h("div", { class: "row" },
      h("strong", {}, earlier ? `${earlier.name} (before) and ${later.name} (now)` : later.name),
      earlier && h("button", { type: "button", on: { click: () => { reports.reverse(); draw(); } } }, "Swap"),
      h("button", { type: "button", on: { click: () => { reports.length = 0; draw(); } } }, "Close")),
    about(later.metrics), h("div", { class: "columns" }, figures(earlier?.metrics, later.metrics), counts(earlier?.metrics, later.metrics)),
    groups("By family", "by_family", earlier?.metrics, later.metrics), groups("By difficulty", "by_difficulty", earlier?.metrics, later.metrics),
    cases(earlier?.metrics, later.metrics));
  }
}

/** What an evaluation is, and how to make one. */
function introduction() {
  const dataset = '[{"id": "first", "input": "What is 6 * 7?", "gold_answer": "42"}]';
  return card("Make a report",
    h("p", {}, "An evaluation runs the cases of a data set, compares their answers with the gold answers, and reports how many are right, what they cost and how long they take. Two reports side by side show what a new model, prompt or release changes."),
    h("ol", { class: "steps" },
      h("li", {}, "Write a data set, for example ", h("code", {}, "cases.json"), ":", shown(dataset)),
      h("li", {}, "Run it against this service:", shown(`caseworker eval cases.json --url ${location.origin}${root} --out report`)),
      h("li", {}, "Choose ", h("code", {}, "report/metrics.json"), " above.")),
    h("p", { class: "muted" }, "The page ", h("code", {}, "docs/evaluation.md"), " of the documentation describes data sets, all figures and comparisons; ",
      h("a", { href: `${root}/docs` }, "the description of the API"), " how other programs run cases."));
}

function about({ evaluation }) {
  const { id, started_at, duration_seconds, dataset, interrupted, ...rest } = evaluation;
  const facts = [
    ["Evaluation", [id, interrupted && h("small", {}, "interrupted")], "long"],
    ["Data set", [dataset?.name ?? "–", h("small", {}, counted(dataset?.cases ?? 0, "case"))]],
    ["Began", [since(started_at), h("small", {}, `${instant(started_at)}, took ${seconds(duration_seconds ?? null)}`)]],
    ...Object.entries(rest).filter(([, value]) => ["string", "number"].includes(typeof value)).map(([name, value]) => [words(name), value]),
  ];
  return card(null, h("dl", { class: "facts" }, facts.map(([name, value, size]) =>
    h("div", { class: size }, h("dt", {}, name), h("dd", {}, value)))));
}

function figures(before, now) {
  const columns = [["Figure", ""], ...(before ? [["Before", "number"]] : []), ["Now", "number"], ...(before ? [["Change", "number"]] : [])];
  return card("Figures", table("Figures", columns, FIGURES.map(([key, title, shown, good]) => [
    title, ...(before ? [shown(before[key] ?? null)] : []), shown(now[key] ?? null),
    ...(before ? [change(before[key], now[key], shown, good)] : []),
  ])));
}

function change(before, now, shown, good) {
  if (typeof before !== "number" || typeof now !== "number") return "–";
  const difference = now - before;
  if (Math.abs(difference) < 1e-9) return "same";
  const better = difference * good > 0;
  return h("span", { class: better ? "better" : "worse" }, `${difference > 0 ? "+" : "−"}${shown(Math.abs(difference))} ${better ? "better" : "worse"}`);
}

function counts(before, now) {
  const columns = [["Count", ""], ...(before ? [["Before", "number"]] : []), ["Now", "number"]];
  const tokens = (one) => one.tokens?.total ?? {};
  return card("Counts", table("Counts", columns, [
    ...COUNTS.map(([key, title]) => [title, ...(before ? [count(before.counts[key])] : []), count(now.counts[key])]),
    ["tokens", ...(before ? [count((tokens(before).input ?? 0) + (tokens(before).output ?? 0))] : []), count((tokens(now).input ?? 0) + (tokens(now).output ?? 0))],
    ["cost", ...(before ? [amount("cost_usd", tokens(before).cost_usd)] : []), amount("cost_usd", tokens(now).cost_usd)],
  ]));
}

function groups(title, key, before, now) {
  const names = Object.keys(now[key] ?? {});
  if (!names.length) return null;
  const columns = [[words(key.slice("by_".length)), ""], ["Trials", "number"], ...(before ? [["Before", "number"]] : []), ["Success", "number"], ["Escalated", "number"], ["Falsely verified", "number"], ["95 % within", "number"]];
  return card(title, table(title, columns, names.map((name) => {
    const one = now[key][name];
    const earlier = before?.[key]?.[name];
    return [name, count(one.trials), ...(before ? [earlier ? percent(earlier["success@1"]) : "–"] : []),
      percent(one["success@1"]), percent(one.escalation_rate), count(one.falsely_verified), seconds(one.p95_latency_seconds)];
  })));
}

function cases(before, now) {
  const earlier = new Map((before?.cases ?? []).map((one) => [one.id, one]));
  const outcome = (one) => (one ? [one.outcomes ?? one.outcome].flat().map((each) => (typeof each === "object" ? Object.keys(each).join(", ") : each)).join(", ") : "–");
  const rows = now.cases.map((one) => [one, earlier.get(one.id)]);
  const changed = before ? rows.filter(([one, other]) => outcome(one) !== outcome(other)) : rows;
  const columns = [["Case", ""], ["Family", ""], ...(before ? [["Before", ""]] : []), ["Outcome", ""]];
  return card(before ? `Cases with another outcome: ${changed.length} of ${rows.length}` : `Cases: ${rows.length}`,
    changed.length ? table("Cases", columns, changed.slice(0, 500).map(([one, other]) => [
      one.run_ids?.[0] ? h("a", { class: "row-link", href: `${root}/ui${runPath(one.run_ids[0])}` }, one.id) : h("span", { class: "mono" }, one.id), one.family ?? "", ...(before ? [outcome(other)] : []), outcome(one),
    ])) : h("p", { class: "muted" }, "All cases have the same outcome as before."));
}

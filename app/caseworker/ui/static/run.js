// The page of one run: how it stands, what it may spend, its calls, steps, result and files.

import { ApiError, events, get, pause, refusal, root, runPath } from "./api.js";
import { approvals } from "./approvals.js";
import { cancelRun, goOnFrom } from "./actions.js";
import { pictures } from "./artifacts.js";
import { critical, gauges, models, times } from "./budget.js";
import { CallDetail } from "./call_detail.js";
import { CallTree } from "./call_tree.js";
import { announce, card, fill, h, nothing, shown, since } from "./dom.js";
import { amount, between, count, counted, duration, instant, LIMITS, money } from "./format.js";
import { badge, ENDED, words } from "./status.js";
import { stepGraph } from "./step_graph.js";
import { Timeline } from "./timeline.js";

export async function show(context) {
  await new RunPage(context).open();
}

class RunPage {
  constructor({ main, params: [runId], signal, go }) {
    Object.assign(this, { main, runId, signal, go });
    this.opened = new Set();
    this.head = h("div", { class: "stack" });
    this.asked = h("div", { class: "stack" });
    this.facts = h("div", { class: "glance" });
    this.panels = { calls: h("div", { class: "work" }), steps: h("div", {}), spent: h("div", { class: "columns" }), result: h("div", {}), files: h("div", {}) };
    this.detail = new CallDetail(runId, {
      signal,
      closed: () => {
        this.panels.calls.classList.remove("with-detail");
        this.timeline.grid.focus();
      },
      goOn: (until) => ENDED.has(this.run.status) && goOnFrom(this.run, until, this.go),
    });
    this.timeline = new Timeline({ selected: (call, options) => this.#open(call, options) });
    fill(this.panels.calls, this.timeline.element, this.detail.element);
  }

  async open() {
    document.title = `${this.runId} · Caseworker`;
    [this.refused] = await Promise.all([refusal("run"), this.#load()]);
    if (this.signal.aborted) return;
    if (this.refused) this.detail.goOn = null;
    this.tabs = this.#tabs();
    fill(this.main, this.head, this.asked, this.facts, this.tabs, Object.values(this.panels));
    this.#draw();
    if (!ENDED.has(this.run.status)) this.#follow();
  }

  async #load() {
    const [run, trace, files] = await Promise.all([
      get(runPath(this.runId), {}, this.signal),
      get(runPath(this.runId, "trace"), {}, this.signal),
      get(runPath(this.runId, "artifacts"), {}, this.signal),
    ]);
    Object.assign(this, { run, trace, files: files.artifacts });
  }

  /** Loads anew whenever something happens, at most as often as half of the time allows. */
  async #follow() {
    let asked = null;
    const wake = () => asked?.();
    const listen = async () => {
      try {
        for await (const event of events(this.runId, { after: 0, signal: this.signal })) {
          if (event.type.startsWith("run.") || event.type.startsWith("approval.")) announce(words(event.type.replace(".", " ")));
          this.changed = true;
          wake();
        }
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
      }
    };
    listen();
    while (!this.signal.aborted) {
      if (!this.changed) {
        const asleep = new AbortController();
        asked = () => asleep.abort();
        await Promise.race([pause(5000, this.signal), pause(60_000, asleep.signal)]);
      }
      if (this.signal.aborted) return;
      this.changed = false;
      const began = performance.now();
      try {
        await this.#load();
      } catch (error) {
        if (this.signal.aborted || error.status === 401) return;
        await pause(3000, this.signal);
        continue;
      }
      this.#draw();
      if (ENDED.has(this.run.status)) return;
      await pause(Math.max(400, performance.now() - began), this.signal);
    }
  }

  #draw() {
    if (this.signal.aborted) return;
    const { run, trace } = this;
    fill(this.head, this.#heading(), this.#stopped(), asked(run), this.#answer());
    approvals(this.asked, run, this.signal);
    fill(this.facts, this.#facts(), gauges(run));
    this.tree = new CallTree(trace, run, this.tree);
    this.timeline.show(this.tree);
    this.timeline.grid.classList.toggle("short", this.tree.byId.size < 16);
    const nested = trace.graph ? [...nestedIn(trace.graph)] : [];
    this.states = this.#stateOfSteps();
    fill(this.panels.steps, trace.graph && (trace.graph.steps.length > 1 || nested.length)
      ? h("div", { class: "stack" }, card(null, this.#drawn(trace.graph, "")), nested.map(([path, graph]) => this.#inside(path, graph)))
      : nothing("This run has no step graph."));
    fill(this.panels.spent, models(trace.analysis), times(trace.analysis), critical(trace.analysis, this.tree, (id) => this.#choose(id)));
    fill(this.panels.result, result(run));
    pictures(this.panels.files, this.files, this.signal);
    const numbers = { calls: this.tree.byId.size, steps: trace.graph?.steps.length, files: this.files.length };
    for (const button of this.tabs.children) {
      const number = numbers[button.dataset.tab];
      fill(button.lastChild, number === undefined ? "" : count(number));
      if (button.dataset.tab === "steps") button.hidden = !(number > 1 || nested.length);
    }
    if (this.detail.id && this.tree.byId.has(this.detail.id)) this.detail.show(this.tree.byId.get(this.detail.id));
  }

  #heading() {
    const { run } = this;
    const named = run.agent ?? run.graph;
    const ended = ENDED.has(run.status);
    return h("div", { class: "page-head" },
      h("h1", { class: "mono" }, run.run_id),
      badge(run.status),
      h("span", { class: "tag" }, run.kind),
      named && run.kind === "external" ? h("span", {}, named.name) : named && h("a", { href: `${root}/ui/${run.agent ? "agents" : "graphs"}/${named.name}` }, `${named.name}${named.version ? ` @${named.version}` : ""}`),
      run.thread_id && h("span", { class: "muted" }, "answers in ", h("a", { href: `${root}/ui/threads/${encodeURIComponent(run.thread_id)}` }, run.thread_id)),
      run.client && h("span", { class: "muted" }, run.client.conversation ? `session ${run.client.conversation}` : "unnamed session", run.client.user_agent && ` of ${run.client.user_agent}`),
      run.from && h("span", { class: "muted" }, "resumed from ", h("a", { href: `${root}/ui${runPath(run.from.run_id)}` }, run.from.run_id)),
      h("div", { class: "end" },
        ended ? null : h("span", { class: "live" }, "Live"),
        ended ? h("button", { type: "button", disabled: this.refused, title: this.refused, on: { click: () => goOnFrom(run, null, this.go) } }, "Resume this run…") : null,
        ended ? null : h("button", { type: "button", class: "danger", disabled: this.refused, title: this.refused, on: { click: () => cancelRun(run) } }, "Cancel…")));
  }

  #stopped() {
    const { run, trace } = this;
    const { stop } = run;
    if (!stop) return null;
    // Beside a step that failed others are cut off: what is looked for is the one that failed.
    const at = stop.kind === "error" ? failedStep(trace, stop) : trace.analysis.stopped_at;
    const limit = stop.dimension && [`${Object.values(LIMITS).find(([, one]) => one === stop.dimension)?.[0].replace(/s$/, "") ?? words(stop.dimension)} limit`, stop.scope && stop.scope !== "run" ? ` of ${stop.scope}` : "", " reached",
      stop.limit === undefined ? "" : `: ${amount(stop.dimension, stop.used)} of ${amount(stop.dimension, stop.limit)} used`,
      stop.requested ? `, ${amount(stop.dimension, stop.requested)} more requested` : ""];
    const texts = [
      limit ? limit : stop.kind === "cancelled" ? `Cancelled by ${stop.requested_by ?? "an unknown caller"}` : stop.kind === "error" ? "An error" : words(stop.kind),
      stop.step_id ? ` · step ${stop.step_id}` : null, stop.reason && !limit ? ` · ${stop.reason}` : null,
    ];
    return h("div", { class: `banner banner-${run.status}` },
      badge(run.status), h("span", {}, texts),
      at && h("button", { type: "button", class: "link", on: { click: () => this.#choose(at.node_id) } }, `Show the call: ${at.name ?? at.path}`));
  }

  #facts() {
    const { run, trace } = this;
    const usage = run.usage ?? {};
    const totals = trace.snapshot.aggregates;
    const estimatedCost = usage.cost_usd_estimated ?? 0;
    const estimatedTokens = usage.tokens_estimated ?? 0;
    const unknown = usage.cost_usd === null || usage.cost_usd === undefined;
    const cost = unknown ? usage.cost_usd_known ?? null : usage.cost_usd;
    const facts = [
      [run.started_at ? "Started" : "Accepted", since(run.started_at ?? run.created_at), run.started_at ? `${instant(run.started_at)}, waited ${duration(between(run.created_at, run.started_at))}` : run.start_at ? `starts ${instant(run.start_at)}` : "in the queue"],
      ["Time", run.started_at ? duration(between(run.started_at, run.finished_at)) : "–", run.finished_at ? `ended ${instant(run.finished_at)}` : "so far"],
      ["Cost charged", run.usage ? money(cost === null ? null : cost - estimatedCost) : "–", unknown && run.usage ? counted(usage.unpriced_calls ?? 0, "call without a price", "calls without a price") : "reported by providers"],
      ["Cost estimated", money(estimatedCost), estimatedCost ? "sent, response lost" : "none"],
      ["Tokens", count(usage.tokens ?? totals.total_tokens_in + totals.total_tokens_out), `${count(totals.total_tokens_in)} in, ${count(totals.total_tokens_out)} out${estimatedTokens ? `, ${count(estimatedTokens)} estimated` : ""}`],
      ["Calls", counted(usage.llm_calls ?? totals.total_llm_calls, "model call"), `${counted(usage.tool_calls ?? totals.total_tool_calls, "tool call")}, ${counted(totals.total_retries, "retry", "retries")}`],
      ["Attempts", count(run.attempts), run.attempts > 1 ? "restarted by a worker" : null],
    ];
    return h("section", { class: "card" }, h("h2", {}, "Run"), h("dl", { class: "facts" },
      facts.map(([name, value, note]) => h("div", {}, h("dt", {}, name), h("dd", {}, value, note && h("small", {}, note))))));
  }

  #answer() {
    const answer = answerOf(this.run);
    return answer !== null && h("section", { class: "card" }, h("h2", {}, "Answer"), h("p", { class: "answer-text" }, answer));
  }

  /** A graph, whose steps have paths that begin with `prefix`. */
  #drawn(graph, prefix) {
    const states = new Map(graph.steps.map(({ id }) => [id, this.states.get(prefix + id)]));
    return stepGraph(graph, states, (id) => this.#choose(id));
  }

  /** The graph inside a step, drawn when it is opened; it stays open while the run goes on. */
  #inside(path, graph) {
    const box = h("details", { class: "card", open: this.opened.has(path), on: { toggle: () => {
      this.opened[box.open ? "add" : "delete"](path);
      if (box.open && box.children.length === 1) box.append(this.#drawn(graph, `${path}/`));
    } } }, h("summary", {}, `Inside ${path}: ${counted(graph.steps.length, "step")}`));
    return box;
  }

  #stateOfSteps() {
    const states = new Map();
    for (const [id, step] of Object.entries(this.run.result?.steps ?? {})) states.set(id, { status: step.status });
    for (const step of this.trace.steps) {
      // Of a step in a graph that was tried again, the last execution counts.
      const path = step.path.replaceAll(/~[^/]*/g, "");
      states.set(path, { items: this.run.result?.outputs?.[path]?.items, status: this.tree.byId.get(step.node_id).status, nodeId: step.node_id, ms: step.duration_ms, retries: step.retries });
    }
    return states;
  }

  #tabs() {
    const titles = { calls: "Calls", steps: "Steps", spent: "Cost and time", result: "Result", files: "Files" };
    const list = h("div", { class: "tabs", role: "tablist", "aria-label": "Parts of the run" });
    const pick = (name, focus) => {
      for (const button of list.children) {
        const chosen = button.dataset.tab === name;
        button.setAttribute("aria-selected", String(chosen));
        button.tabIndex = chosen ? 0 : -1;
        if (chosen && focus) button.focus();
        this.panels[button.dataset.tab].hidden = !chosen;
      }
    };
    this.pick = pick;
    const names = Object.keys(titles);
    for (const name of names) {
      const button = h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`, dataset: { tab: name }, on: { click: () => pick(name) } },
        titles[name], h("span", { class: "count" }));
      list.append(button);
      Object.entries({ role: "tabpanel", id: `panel-${name}`, "aria-labelledby": `tab-${name}` }).forEach(([key, value]) => this.panels[name].setAttribute(key, value));
    }
    list.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const seen = names.filter((name) => !list.children[names.indexOf(name)].hidden);
      const at = seen.indexOf(document.activeElement.dataset.tab);
      pick(seen[(at + step + seen.length) % seen.length], true);
      event.preventDefault();
    });
    pick("calls");
    return list;
  }

  #open(call, options) {
    this.panels.calls.classList.add("with-detail");
    this.detail.show(call, options);
  }

  #choose(nodeId) {
    const call = this.tree.byId.get(nodeId);
    if (!call) return;
    this.pick("calls");
    this.timeline.select(call);
    this.timeline.grid.focus();
  }
}

function failedStep({ steps }, { step_id: id }) {
  return steps.findLast((one) => one.status === "failed" && (!id || one.path === id));
}

/** Yields the graphs that the steps of a graph execute, outer ones first: [path of the step, graph]. */
function* nestedIn(graph, prefix = "") {
  for (const { id, graph: inner } of graph.steps) {
    if (!inner) continue;
    yield [prefix + id, inner];
    yield* nestedIn(inner, `${prefix}${id}/`);
  }
}

/** What the run was given, as far as it may be shown. */
function asked({ input, inputs }) {
  const given = input ?? inputs;
  return given !== null && h("section", { class: "card", "aria-label": "Input" }, h("h2", {}, "Input"),
    typeof input === "string" ? h("p", { class: "answer-text" }, input) : input !== null && shown(input),
    inputs && shown(inputs));
}

function answerOf({ result: came }) {
  const answer = came?.answer ?? came?.output ?? null;
  if (answer === null || answer === "") return null;
  return typeof answer === "string" ? answer : JSON.stringify(answer);
}

function result({ result: came, metadata }) {
  return [
    card("Result", came === null ? h("p", { class: "muted" }, "Nothing yet.") : shown(came)),
    Object.keys(metadata).length ? card("Metadata", shown(metadata)) : null,
  ];
}

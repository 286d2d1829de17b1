// The calls of a run as a tree that is shown row by row: what is below what, what is folded.

const CUT_OFF = new Set([
  "the run ended",
  "Another step failed.",
  "The step ignored its cancellation and was abandoned.",
  "worker_lost",
]);
const WAITS = "It waits for an approval.";
const WORDS = { created: "waiting", running: "running", success: "completed", fail: "failed" };

export class CallTree {
  /** `earlier` is the tree that this one takes the place of: what was folded there stays so. */
  constructor(trace, run, earlier) {
    const { nodes, root_id, snapshot_ts_ms } = trace.snapshot;
    this.byId = new Map();
    this.root = null;
    this.folded = earlier?.folded ?? new Set();
    this.unfolded = earlier?.unfolded ?? new Set();
    this.needle = earlier?.needle ?? "";
    this.now = ended(run) ? snapshot_ts_ms : Math.max(snapshot_ts_ms, Date.now());
    const root = nodes[root_id];
    const told = new Map(trace.steps.map((step) => [step.node_id, step.status]));
    for (const node of Object.values(nodes)) {
      const parent = this.byId.get(node.parent_id) ?? null;
      const call = {
        node,
        parent,
        id: node.node_id,
        level: parent ? parent.level + 1 : 1,
        children: [],
        sort: sortOf(node),
        status: told.get(node.node_id) ?? statusOf(node, root, run, parent),
        title: parent ? titleOf(node) : run.run_id,
        hint: hintOf(node),
        start: node.start_ts_ms,
        end: node.end_ts_ms ?? this.now,
        waited: (node.metadata.waited_ms ?? 0) + (node.metadata.waited_for_model_ms ?? 0),
        takenOver: node.metadata.taken_over ?? null,
        critical: [],
      };
      this.byId.set(call.id, call);
      if (parent) parent.children.push(call);
      else this.root = call;
    }
    this.start = this.root?.start ?? this.now;
    this.end = this.start + 1;
    for (const call of this.byId.values()) {
      if (call.end > this.end) this.end = call.end;
      if (call.parent && call.sort === "attempt") (call.parent.tries ??= []).push(call);
    }
    for (const one of trace.analysis.critical_path) {
      this.byId.get(one.node_id)?.critical.push([this.start + one.after_ms, this.start + one.after_ms + one.duration_ms]);
    }
    for (const step of trace.steps) {
      const call = this.byId.get(step.node_id);
      if (call) call.used = step;
    }
  }

  /** Whether the calls below a call are shown: attempts only when they are asked for. */
  isOpen(call) {
    if (this.unfolded.has(call.id)) return true;
    return !this.folded.has(call.id) && call.children.some((child) => child.sort !== "attempt");
  }

  /** Whether a child of an open call is shown: an attempt only if the call was unfolded. */
  #shows(call, child) {
    return child.sort !== "attempt" || this.unfolded.has(call.id);
  }

  toggle(call, open = !this.isOpen(call)) {
    this.folded.delete(call.id);
    this.unfolded.delete(call.id);
    (open ? this.unfolded : this.folded).add(call.id);
  }

  foldAll(open) {
    this.folded.clear();
    this.unfolded.clear();
    if (open) return;
    for (const call of this.byId.values()) if (call.parent && call.children.length) this.folded.add(call.id);
  }

  /** Unfolds whatever hides a call. */
  reveal(call) {
    for (let child = call, above = call.parent; above; child = above, above = above.parent) {
      if (!this.isOpen(above) || !this.#shows(above, child)) this.toggle(above, true);
    }
  }

  /** The calls that are shown, in order; a search shows what fits it, and what stands above. */
  rows() {
    const fits = this.needle ? this.#fitting() : null;
    const rows = [];
    const left = this.root ? [this.root] : [];
    while (left.length) {
      const call = left.pop();
      if (fits && !fits.has(call)) continue;
      rows.push(call);
      if (fits || this.isOpen(call)) {
        for (const child of [...call.children].reverse()) {
          if (fits || this.#shows(call, child)) left.push(child);
        }
      }
    }
    return rows;
  }

  #fitting() {
    const needle = this.needle.toLowerCase();
    const fits = new Set();
    for (const call of this.byId.values()) {
      const { name, model, stop_reason, error_class } = call.node;
      const text = [name, model, stop_reason, error_class, call.status, call.sort, call.id].join(" ").toLowerCase();
      if (!text.includes(needle)) continue;
      for (let each = call; each && !fits.has(each); each = each.parent) fits.add(each);
    }
    return fits;
  }
}

function sortOf(node) {
  if (!node.parent_id) return "run";
  if (node.kind !== "system") return node.kind;
  if (node.name === "attempt") return "attempt";
  if (typeof node.metadata.agent === "string") return "agent";
  return "step_type" in node.metadata ? "step" : "system";
}

function titleOf({ name, kind, metadata }) {
  if (kind === "system" && typeof metadata.agent === "string") return metadata.agent;
  const turn = kind === "llm" && /(?:^|\/)turn\/(\d+)$/.exec(metadata.call_key ?? "");
  return turn ? `${name} ${turn[1]}` : name;
}

/** What a tool was called with, or which type a step has, in a few characters. */
function hintOf({ kind, metadata }) {
  if (kind === "tool" && metadata.args && typeof metadata.args === "object") {
    const values = Object.values(metadata.args).map((one) => (typeof one === "string" ? one : JSON.stringify(one)));
    return values.join(", ").slice(0, 80);
  }
  return typeof metadata.step_type === "string" ? metadata.step_type : "";
}

/** How a call stands in the words of a run's status, as the service tells it of steps. */
function statusOf(node, root, run, parent) {
  if (!parent && run.status === "waiting") return "waiting";
  if (node.status !== "halt") return WORDS[node.status];
  const around = parent?.sort === "llm" ? parent.parent : parent; // the step of an LLM call
  if (node.stop_reason === WAITS && around?.status === "waiting") return "waiting";
  const withRun = run.status === "cancelled" && node.stop_reason === root.stop_reason;
  return withRun || CUT_OFF.has(node.stop_reason) ? "cancelled" : "halted";
}

function ended(run) {
  return run.finished_at !== null;
}

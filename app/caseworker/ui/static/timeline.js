// Calls as rows of a tree beside bars on one scale of time. Only the rows in sight are elements.

import { announce, fill, h, oncePerFrame } from "./dom.js";
import { duration, money } from "./format.js";
import { Overview } from "./overview.js";
import { sign, words } from "./status.js";

const ROW = 28;
const HEAD = 30;
const SPARE = 12;
const SORTS = { run: "RUN", step: "STEP", llm: "LLM", tool: "TOOL", system: "SYS", agent: "AGENT", attempt: "TRY" };
const LEGEND = [
  ["llm", "model call"], ["tool", "tool call"], ["step", "step"], ["waits", "waited for budget or provider"],
  ["critical", "critical path"], ["replayed", "imported"],
];

export class Timeline {
  constructor({ selected }) {
    this.chosen = selected;
    this.tree = null;
    this.rows = [];
    this.shown = new Map();
    this.current = null;
    this.view = null;
    this.draw = oncePerFrame(() => this.#draw());
    this.overview = new Overview((from, to) => this.zoom(from, to));
    this.axis = h("div", { class: "cell-time axis", role: "columnheader", "aria-label": "Timeline" });
    this.body = h("div", { class: "calls-body", role: "rowgroup" });
    this.grid = h("div",
      {
        class: "calls-grid", role: "treegrid", tabindex: "0", "aria-label": "Calls",
        on: { scroll: this.draw, keydown: (event) => this.#key(event), click: (event) => this.#click(event), wheel: (event) => this.#wheel(event) },
      },
      h("div", { role: "rowgroup", class: "calls-head" },
        h("div", { class: "call head", role: "row", "aria-rowindex": "1" },
          h("div", { class: "cell-name", role: "columnheader" }, "Call"),
          h("div", { class: "cell-number", role: "columnheader" }, "Time"),
          h("div", { class: "cell-number cell-cost", role: "columnheader" }, "Cost"),
          this.axis)),
      this.body);
    const search = h("input", { type: "search", placeholder: "Find a call, model, error…", "aria-label": "Find calls" });
    search.addEventListener("input", () => {
      this.tree.needle = search.value.trim();
      this.#rebuild();
      announce(`${this.rows.length} calls are shown.`);
    });
    const button = (text, label, work) => h("button", { type: "button", "aria-label": label, title: label, on: { click: work } }, text);
    this.element = h("div", { class: "calls" },
      h("div", { class: "calls-tools" }, search,
        button("Fold", "Fold all", () => this.#foldAll(false)),
        button("Unfold", "Unfold all", () => this.#foldAll(true)),
        h("span", { class: "zoom" },
          button("−", "Zoom out", () => this.scale(2)),
          button("+", "Zoom in", () => this.scale(0.5)),
          button("Fit", "Show the whole run", () => this.zoom()))),
      this.overview.element,
      this.grid,
      h("ul", { class: "legend", "aria-label": "Legend" },
        LEGEND.map(([name, text]) => h("li", {}, h("i", { class: `swatch swatch-${name}` }), text))));
    new ResizeObserver(() => {
      if (this.tree) this.#axis();
      this.draw();
    }).observe(this.grid);
  }

  /** Shows a tree; what is folded, selected and zoomed stays. */
  show(tree) {
    const whole = !this.view || (this.view[0] <= this.tree.start && this.view[1] >= this.tree.end);
    this.tree = tree;
    if (whole) this.view = [tree.start, tree.end];
    if (this.current) this.current = tree.byId.get(this.current.id) ?? null;
    this.#rebuild();
  }

  /** Selects a call and brings it into sight. */
  select(call, { quiet = false } = {}) {
    this.tree.reveal(call);
    this.current = call;
    this.rows = this.tree.rows();
    const at = this.rows.indexOf(call);
    if (at < 0) return;
    const top = at * ROW;
    const room = this.grid.clientHeight - HEAD;
    if (top < this.grid.scrollTop) this.grid.scrollTop = top;
    else if (top + ROW > this.grid.scrollTop + room) this.grid.scrollTop = top + ROW - room;
    this.#rebuild();
    if (!quiet) this.chosen(call);
  }

  zoom(from = this.tree.start, to = this.tree.end) {
    const least = Math.max(1, (this.tree.end - this.tree.start) / 20_000);
    this.view = [Math.max(from, this.tree.start), Math.min(Math.max(to, from + least), this.tree.end)];
    this.#rebuild({ sameRows: true });
  }

  /** Shows more time (a factor above 1) or less, around a moment. */
  scale(factor, around = (this.view[0] + this.view[1]) / 2) {
    this.zoom(around - (around - this.view[0]) * factor, around + (this.view[1] - around) * factor);
  }

  #rebuild({ sameRows = false } = {}) {
    if (!sameRows) this.rows = this.tree.rows();
    this.places = new Map(this.rows.map((call, at) => [call, at]));
    this.grid.setAttribute("aria-rowcount", String(this.rows.length + 1));
    this.body.style.height = `${this.rows.length * ROW}px`;
    for (const element of this.shown.values()) element.remove();
    this.shown.clear();
    this.#axis();
    this.overview.show(this.tree, this.rows, this.view);
    this.draw();
  }

  #draw() {
    const first = Math.max(0, Math.floor(this.grid.scrollTop / ROW) - SPARE);
    const last = Math.min(this.rows.length, Math.ceil((this.grid.scrollTop + this.grid.clientHeight) / ROW) + SPARE);
    for (const [at, element] of this.shown) {
      if (at >= first && at < last) continue;
      element.remove();
      this.shown.delete(at);
    }
    const fresh = document.createDocumentFragment();
    for (let at = first; at < last; at += 1) {
      if (this.shown.has(at)) continue;
      const element = this.#row(this.rows[at], at);
      this.shown.set(at, element);
      fresh.append(element);
    }
    this.body.append(fresh);
    if (this.current && this.shown.has(this.places.get(this.current))) {
      this.grid.setAttribute("aria-activedescendant", `call-${this.current.id}`);
    } else {
      this.grid.removeAttribute("aria-activedescendant");
    }
  }

  #row(call, at) {
    const folds = call.children.length > 0;
    const open = folds && (this.tree.needle ? true : this.tree.isOpen(call));
    const selected = call === this.current;
    const { node } = call;
    const cost = call.used ? call.used.cost_usd : node.cost_usd;
    const name = h("div", { class: "cell-name", role: "rowheader" },
      h("span", { class: `fold${folds ? (open ? " open" : " shut") : ""}`, "aria-hidden": "true" }),
      sign(call.status, words(call.status)),
      h("span", { class: `sort sort-${call.sort}` }, SORTS[call.sort]),
      h("span", { class: "call-name", title: call.title }, call.title),
      node.model || call.hint ? h("span", { class: "call-model" }, node.model ?? call.hint) : null,
      tags(call));
    name.style.paddingLeft = `${Math.min(call.level - 1, 24) * 14 + 6}px`;
    const row = h("div",
      {
        class: `call${selected ? " selected" : ""}`, role: "row", id: `call-${call.id}`, dataset: { at },
        "aria-rowindex": at + 2, "aria-level": call.level, "aria-selected": String(selected),
        "aria-expanded": folds ? String(open) : null,
      },
      name,
      h("div", { class: "cell-number", role: "gridcell" }, duration(call.end - call.start)),
      h("div", { class: "cell-number cell-cost", role: "gridcell" }, cost === 0 ? "" : money(cost)),
      h("div", { class: "cell-time", role: "gridcell", "aria-label": this.#told(call) }, this.#bars(call)));
    row.style.transform = `translateY(${at * ROW}px)`;
    return row;
  }

  #told(call) {
    const parts = [`starts after ${duration(call.start - this.tree.start)}`];
    if (call.waited) parts.push(`waited ${duration(call.waited)}`);
    if (call.critical.length) parts.push("on the critical path");
    return parts.join(", ");
  }

  #bars(call) {
    const made = call.takenOver ? "replayed" : call.status;
    const bars = [this.#bar(call.start, call.end, `bar bar-${call.sort} bar-${made}`)];
    if (call.waited) bars.push(this.#bar(call.start, Math.min(call.start + call.waited, call.end), "bar bar-waits"));
    for (const one of call.tries ?? []) {
      if (one.start > call.start) bars.push(this.#bar(one.start, one.start, "bar-try"));
      if (one.status === "failed") bars.push(this.#bar(one.start, one.end, "bar bar-missed"));
    }
    const least = ((this.view[1] - this.view[0]) / (this.axis.clientWidth || 600)) * 1.5;
    for (const [from, to] of call.critical) {
      if (!call.children.length || to - from > least) bars.push(this.#bar(from, to, "bar-critical"));
    }
    return bars;
  }

  #bar(from, to, name) {
    const [start, end] = this.view;
    if (to < start || from > end) return null;
    const left = Math.max(((from - start) / (end - start)) * 100, -1);
    const right = Math.min(((to - start) / (end - start)) * 100, 101);
    const bar = h("span", { class: name });
    bar.style.left = `${left}%`;
    bar.style.width = `${right - left}%`;
    return bar;
  }

  #axis() {
    const [start, end] = this.view;
    const span = end - start;
    const width = this.axis.clientWidth || 600;
    const rough = span / Math.max(2, Math.min(8, width / 90));
    const step = Math.max(roundStep(rough), span / 50, 1);
    const ticks = [];
    const first = Math.ceil((start - this.tree.start) / step) * step;
    for (let at = first; at <= end - this.tree.start; at += step) {
      const left = ((at + this.tree.start - start) / span) * 100;
      if (left > 100 - 4800 / width) break;
      const tick = h("span", { class: "tick" }, at === 0 ? "0" : duration(at));
      tick.style.left = `${left}%`;
      ticks.push(tick);
    }
    fill(this.axis, ticks);
  }

  #click(event) {
    const row = event.target.closest("[data-at]");
    if (!row) return;
    const call = this.rows[Number(row.dataset.at)];
    if (event.target.closest(".fold") && call.children.length) {
      this.tree.toggle(call);
      this.#rebuild();
    } else {
      this.select(call);
    }
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.places.get(this.current) ?? -1;
    const call = this.rows[at];
    const page = Math.max(1, Math.floor((this.grid.clientHeight - HEAD) / ROW) - 1);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: this.rows.length - 1 }[event.key];
    if (to !== undefined) this.select(this.rows[Math.min(Math.max(to, 0), this.rows.length - 1)]);
    else if (event.key === "ArrowRight" && call) this.#inward(call, at);
    else if (event.key === "ArrowLeft" && call) this.#outward(call);
    else if (event.key === "Enter" && call) this.chosen(call, { focus: true });
    else if (event.key === "+") this.scale(0.5, call && middle(call));
    else if (event.key === "-") this.scale(2);
    else if (event.key === "0") this.zoom();
    else return;
    event.preventDefault();
  }

  #inward(call, at) {
    if (!call.children.length) return;
    if (this.tree.isOpen(call)) this.select(this.rows[at + 1]);
    else this.#fold(call, true);
  }

  #outward(call) {
    if (call.children.length && this.tree.isOpen(call)) this.#fold(call, false);
    else if (call.parent) this.select(call.parent);
  }

  #fold(call, open) {
    this.tree.toggle(call, open);
    this.#rebuild();
  }

  #foldAll(open) {
    this.tree.foldAll(open);
    this.grid.scrollTop = 0;
    this.#rebuild();
  }

  #wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const place = this.axis.getBoundingClientRect();
    const share = Math.min(Math.max((event.clientX - place.left) / place.width, 0), 1);
    this.scale(event.deltaY > 0 ? 1.25 : 0.8, this.view[0] + (this.view[1] - this.view[0]) * share);
  }
}

/** The next larger step that reads well on a scale of milliseconds. */
function roundStep(ms) {
  const large = [60, 120, 300, 600, 1200, 1800, 3600, 7200, 21_600, 86_400].map((seconds) => seconds * 1000);
  if (ms > 30_000) return large.find((one) => one >= ms) ?? ms;
  const power = 10 ** Math.floor(Math.log10(ms));
  return [1, 2, 5, 10].find((one) => one * power >= ms) * power;
}

function middle(call) {
  return (call.start + call.end) / 2;
}

function tags(call) {
  const { node } = call;
  return [
    node.retries_used ? h("span", { class: "tag tag-warn" }, node.retries_used === 1 ? "1 retry" : `${node.retries_used} retries`) : null,
    call.takenOver ? h("span", { class: "tag" }, "imported") : null,
    node.metadata.replayed_in ? h("span", { class: "tag" }, `replayed in attempt ${node.metadata.replayed_in}`) : null,
    node.metadata.reported ? h("span", { class: "tag" }, "reported") : null,
    node.metadata.continues ? h("span", { class: "tag" }, "resumed") : null,
    call.waited ? h("span", { class: "tag tag-wait" }, `waited ${duration(call.waited)}`) : null,
    node.metadata.fallback ? h("span", { class: "tag tag-warn" }, "fallback") : null,
    node.error_class ? h("span", { class: "tag tag-bad" }, node.error_class) : null,
  ];
}

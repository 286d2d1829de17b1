// The whole run in a strip above its calls: drag over it to look closer at a stretch of time.

import { h, oncePerFrame } from "./dom.js";

const HEIGHT = 48;

export class Overview {
  constructor(chosen) {
    this.chosen = chosen;
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.window = h("div", { class: "overview-window" });
    this.element = h("div", { class: "overview", title: "Drag to zoom, click twice to show all" }, this.canvas, this.window);
    this.draw = oncePerFrame(() => this.#draw());
    this.element.addEventListener("pointerdown", (event) => this.#drag(event));
    this.element.addEventListener("dblclick", () => this.chosen());
    document.addEventListener("theme-changed", this.draw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", this.draw);
    new ResizeObserver(this.draw).observe(this.element);
  }

  show(tree, rows, view) {
    if (this.rows !== rows || this.tree !== tree) this.draw();
    Object.assign(this, { tree, rows });
    this.#place(...view);
  }

  #place(from, to) {
    const { start, end } = this.tree;
    const span = end - start;
    this.window.style.left = `${((from - start) / span) * 100}%`;
    this.window.style.width = `${((to - from) / span) * 100}%`;
    this.window.hidden = from <= start && to >= end;
  }

  #draw() {
    const width = this.element.clientWidth;
    if (!width || !this.tree) return;
    const ratio = devicePixelRatio || 1;
    Object.assign(this.canvas, { width: width * ratio, height: HEIGHT * ratio });
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const theme = getComputedStyle(this.element);
    const colour = (name) => theme.getPropertyValue(`--${name}`);
    const colours = { llm: colour("llm"), tool: colour("tool"), bad: colour("bad"), critical: colour("critical"), rest: colour("step") };
    const { start, end } = this.tree;
    const x = (moment) => ((moment - start) / (end - start)) * width;
    const lane = Math.min(6, (HEIGHT - 8) / this.rows.length);
    const thick = Math.max(1, lane - (lane > 3 ? 1 : 0));
    this.rows.forEach((call, at) => {
      if (call.sort === "attempt") return;
      pen.globalAlpha = call.children.length && call.sort !== "llm" && call.sort !== "tool" ? 0.35 : 0.9;
      pen.fillStyle = call.status === "failed" ? colours.bad : colours[call.sort] ?? colours.rest;
      pen.fillRect(x(call.start), 2 + at * lane, Math.max(1, x(call.end) - x(call.start)), thick);
    });
    pen.globalAlpha = 1;
    pen.fillStyle = colours.critical;
    for (const call of this.tree.byId.values()) {
      if (call === this.tree.root) continue;
      for (const [from, to] of call.critical) pen.fillRect(x(from), HEIGHT - 3, Math.max(0.5, x(to) - x(from)), 3);
    }
  }

  #drag(event) {
    const place = this.element.getBoundingClientRect();
    const { start, end } = this.tree;
    const moment = (one) => start + Math.min(Math.max((one.clientX - place.left) / place.width, 0), 1) * (end - start);
    const began = moment(event);
    const moved = (one) => {
      const ends = [began, moment(one)].sort((a, b) => a - b);
      if (((ends[1] - ends[0]) / (end - start)) * place.width > 4) this.chosen(...ends);
    };
    this.element.setPointerCapture(event.pointerId);
    this.element.addEventListener("pointermove", moved);
    this.element.addEventListener("lostpointercapture", () => this.element.removeEventListener("pointermove", moved), { once: true });
  }
}

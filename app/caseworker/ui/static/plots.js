// Plots of values by period: stacked bars or lines. Keys and pointer show the values of a period.

import { fill, h, oncePerFrame, s, table } from "./dom.js";

const HEIGHT = 190;
const MARGIN = { top: 10, right: 10, bottom: 24 };

/** The patterns that mark series for readers who do not see their colours. */
const PATTERNS = {
  slant: "M-2 2l4-4M0 8l8-8M6 10l4-4",
  back: "M-2 6l4 4M0 0l8 8M6-2l4 4",
  level: "M0 2h8M0 6h8",
  dots: "M1.5 2h1.5M5.5 6h1.5",
};

/** A title, a plot, its legend and its values as a table. */
export class Plot {
  /** `shown` formats a value; `lines` draws lines, otherwise bars are stacked. */
  constructor(title, { shown, lines = false, note }) {
    Object.assign(this, { title, shown, lines, at: null });
    this.svg = s("svg", { "aria-hidden": "true", height: HEIGHT });
    this.tip = h("div", { class: "plot-tip", hidden: true });
    this.cursor = h("div", {
      class: "plot", role: "slider", tabindex: "0", "aria-label": title, "aria-valuemin": 0,
      on: {
        keydown: (event) => this.#key(event),
        pointermove: (event) => this.#point(event),
        pointerdown: (event) => this.#point(event),
        pointerleave: () => this.#show(null),
        focus: () => this.cursor.matches(":focus-visible") && this.#show(this.at ?? this.data.slots.length - 1),
        blur: () => this.#show(null),
      },
    }, this.svg, this.tip);
    this.legend = h("ul", { class: "legend", "aria-label": `Legend of ${title}` });
    this.values = h("div", {});
    this.empty = h("p", { class: "plot-empty muted" });
    this.element = h("section", { class: "card plot-card", "aria-label": title },
      h("h2", {}, title, note && [" ", h("small", {}, note)]), this.empty, this.cursor, this.legend,
      h("details", {}, h("summary", { "aria-label": `${title}: values as a table` }, "Values"), this.values));
    this.draw = oncePerFrame(() => this.#draw());
    new ResizeObserver(this.draw).observe(this.element);
  }

  /** Shows `series`, each `{name, look, pattern, values, total}`, over `slots`, each `{short, long}`. */
  show({ slots, series, empty }) {
    this.data = { slots, series };
    const some = series.some(({ values }) => values.some(Boolean));
    fill(this.empty, some ? null : empty);
    for (const part of [this.cursor, this.legend, this.values.parentElement]) part.hidden = !some;
    this.empty.hidden = some;
    this.cursor.setAttribute("aria-valuemax", slots.length - 1);
    fill(this.legend, series.map((one) => h("li", {}, this.#swatch(one), one.name,
      one.total !== undefined && h("strong", {}, this.shown(one.total)))));
    const rows = slots.map((slot, at) => [slot.long, ...series.map(({ values }) => this.#value(values[at]))]);
    fill(this.values, table(this.title, [["Period", "nowrap"], ...series.map(({ name }) => [name, "number"])],
      rows.filter((_, at) => series.some(({ values }) => values[at]))));
    this.#show(this.at);
    this.draw();
  }

  #value(value) {
    return value === null ? "–" : this.shown(value);
  }

  #swatch({ look, pattern }) {
    if (this.lines) return s("svg", { width: 22, height: 10 }, s("path", { class: `line line-${look}`, d: "M0 5h22" }));
    return s("svg", { width: 14, height: 10 }, this.#filled({ look, pattern }, { width: 14, height: 10, rx: 2 }));
  }

  #filled({ look, pattern }, place) {
    return [s("rect", { ...place, class: `fill-${look}` }), pattern && s("rect", { ...place, fill: `url(#pattern-${pattern})` })];
  }

  #draw() {
    const width = this.cursor.clientWidth;
    if (!width || !this.data) return;
    const { slots, series } = this.data;
    const sums = slots.map((_, at) => series.reduce((sum, { values }) =>
      (this.lines ? Math.max(sum, values[at] ?? 0) : sum + (values[at] ?? 0)), 0));
    const step = niceStep(Math.max(...sums) / 4, this.shown.least);
    const top = Math.max(Math.ceil(Math.max(...sums) / step), 1) * step;
    const ticks = Array.from({ length: Math.round(top / step) + 1 }, (_, number) => number * step);
    this.left = 14 + 7 * Math.max(...ticks.map((tick) => this.shown(tick).length));
    const inner = { width: width - this.left - MARGIN.right, height: HEIGHT - MARGIN.top - MARGIN.bottom };
    this.wide = inner.width / slots.length;
    const y = (value) => MARGIN.top + inner.height * (1 - value / top);
    const x = (at) => this.left + at * this.wide;
    const every = Math.ceil(64 / this.wide);
    this.svg.setAttribute("width", width);
    this.band = s("rect", { class: "plot-band", y: MARGIN.top, width: Math.max(this.wide, 2), height: inner.height, visibility: "hidden" });
    fill(this.svg, this.band,
      ticks.map((tick) => [
        s("line", { class: "plot-grid", x1: this.left, x2: width - MARGIN.right, y1: y(tick), y2: y(tick) }),
        s("text", { x: this.left - 8, y: y(tick) + 4, "text-anchor": "end" }, this.shown(tick)),
      ]),
      slots.map(({ short }, at) => at % every === 0 && x(at) + 30 < width &&
        s("text", { x: x(at) + this.wide / 2, y: HEIGHT - 6, "text-anchor": "middle" }, short)),
      this.lines ? series.map((one) => this.#line(one, (at) => x(at) + this.wide / 2, y)) : this.#bars(x, y));
    this.#show(this.at);
  }

  #bars(x, y) {
    const gap = this.wide > 6 ? Math.min(this.wide * 0.2, 8) : 0.5;
    return this.data.slots.map((_, at) => {
      let sum = 0;
      return this.data.series.map((one) => {
        const value = one.values[at];
        if (!value) return null;
        sum += value;
        return this.#filled(one, { x: x(at) + gap / 2, y: y(sum), width: this.wide - gap, height: Math.max(y(sum - value) - y(sum) - 0.75, 0.75) });
      });
    });
  }

  /** A line with a gap where there is no value, and a point for each value. */
  #line({ look, values }, x, y) {
    const path = values.map((value, at) => (value === null ? "" : `${at && values[at - 1] !== null ? "L" : "M"}${x(at)} ${y(value)}`)).join("");
    return [s("path", { class: `line line-${look}`, d: path }),
      values.map((value, at) => value !== null && s("circle", { class: `point-${look}`, cx: x(at), cy: y(value), r: this.wide > 12 ? 3 : 1.8 }))];
  }

  #point(event) {
    const at = Math.floor((event.clientX - this.cursor.getBoundingClientRect().left - this.left) / this.wide);
    this.#show(Math.min(Math.max(at, 0), this.data.slots.length - 1));
  }

  #key(event) {
    const last = this.data.slots.length - 1;
    const at = this.at ?? last;
    const to = { ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.#show(null);
    if (to === undefined) return;
    event.preventDefault();
    this.#show(Math.min(Math.max(to, 0), last));
  }

  /** Shows the values of a period beside it, or of none. */
  #show(at) {
    this.at = at !== null && at < this.data.slots.length ? at : null;
    const now = this.at ?? this.data.slots.length - 1;
    const { slots, series } = this.data;
    const present = series.filter(({ values }) => values[now]);
    const spoken = present.map((one) => `${one.name} ${this.shown(one.values[now])}`).join(", ");
    this.cursor.setAttribute("aria-valuenow", now);
    this.cursor.setAttribute("aria-valuetext", `${slots[now].long}: ${spoken || "none"}`);
    this.tip.hidden = this.at === null;
    if (!this.band) return;
    this.band.setAttribute("visibility", this.at === null ? "hidden" : "visible");
    if (this.at === null) return;
    const left = this.left + this.at * this.wide;
    this.band.setAttribute("x", left);
    fill(this.tip, h("strong", {}, slots[now].long), present.length ? h("dl", {}, present.map((one) =>
      h("div", {}, h("dt", {}, this.#swatch(one), one.name), h("dd", {}, this.shown(one.values[now]))))) : h("p", {}, "None"));
    this.tip.style.left = `${Math.min(Math.max(left + this.wide + 8, 0), this.cursor.clientWidth - this.tip.offsetWidth)}px`;
    if (left + this.wide + 8 + this.tip.offsetWidth > this.cursor.clientWidth) this.tip.style.left = `${Math.max(left - this.tip.offsetWidth - 8, 0)}px`;
  }
}

/** The patterns; a page with plots contains them once. */
export function patterns() {
  return s("svg", { width: 0, height: 0, "aria-hidden": "true", class: "patterns" }, s("defs", {}, Object.entries(PATTERNS).map(([name, d]) =>
    s("pattern", { id: `pattern-${name}`, width: 8, height: 8, patternUnits: "userSpaceOnUse" }, s("path", { d })))));
}

/** The next larger step of 1, 2 or 5 times a power of ten, and not below `least`. */
function niceStep(rough, least = 0) {
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  return Math.max([1, 2, 5, 10].find((one) => one * power >= rough) * power, least);
}

// Makes elements. Whatever comes from data becomes a text node or an attribute, never markup.

import { ago, instant } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

/** Returns an element; `props` are attributes, `on` holds listeners, `dataset` data attributes. */
export function h(tag, props, ...children) {
  return filled(document.createElement(tag), props, children);
}

/** Returns an element of a drawing. */
export function s(tag, props, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

function filled(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") {
      for (const [type, listener] of Object.entries(value)) element.addEventListener(type, listener);
    } else if (name === "dataset") {
      Object.assign(element.dataset, value);
    } else if (name === "value" || name === "checked") {
      element[name] = value;
    } else {
      if (/^on|^style$|^srcdoc$/i.test(name)) throw new TypeError(`${name} is not set from here`);
      if (name === "href" && !isPlain(value)) continue;
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  add(element, children);
  return element;
}

function isPlain(address) {
  return ["http:", "https:", "blob:"].includes(new URL(address, location.href).protocol);
}

/** Appends elements and texts, lists of them too; null and false are left out. */
export function add(element, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Puts children in the place of those that an element has. */
export function fill(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

/** Says something to screen readers. */
export function announce(text) {
  const place = document.getElementById("announcer");
  if (place) place.textContent = text;
}

/** Returns a function that runs `work` once in the next frame, however often it is called. */
export function oncePerFrame(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      work();
    });
  };
}

/** Returns a table: `columns` are [title, class] pairs, `rows` lists of cells. */
export function table(label, columns, rows, props = {}) {
  const head = columns.map(([title, kind]) => h("th", { scope: "col", class: kind }, title));
  const body = rows.map((cells) =>
    h("tr", {}, cells.map((cell, at) => h("td", { class: columns[at][1] }, cell))),
  );
  const inner = h("table", { "aria-label": label, ...props }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body));
  return h("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": label }, inner);
}

/** Returns a heading and what stands below it, in a box. */
export function card(title, ...children) {
  return h("section", { class: "card" }, title && h("h2", {}, title), children);
}

/** Returns an instant as a relative time, which is updated as time passes. */
export function since(instantText) {
  return h("time", { datetime: instantText, title: instant(instantText) }, ago(instantText));
}

/** Returns a value as indented JSON, or a text as it is. */
export function shown(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return h("pre", { class: "json", tabindex: "0" }, text ?? "null");
}

/** Returns a message that stands in the place of what is not there. */
export function nothing(title, ...more) {
  return h("div", { class: "nothing" }, h("strong", {}, title), more.length ? h("p", {}, more) : null);
}

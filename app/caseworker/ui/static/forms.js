// Forms that send one request: fields, the errors of the service next to them, and no double submit.

import { get, send } from "./api.js";
import { fill, h } from "./dom.js";
import { LIMITS } from "./format.js";

const UNITS = { max_seconds: "Time (seconds)", max_cost_usd: "Cost (USD)" };
const DEFAULT_VALUE_LIMITS = ["max_cost_usd", "max_llm_calls", "max_tool_calls", "max_seconds"];
let fields = 0;

/** Opens a dialog; `content` receives the function that closes it. */
export function dialog(label, content) {
  const box = h("dialog", { "aria-label": label, on: { close: () => box.remove() } });
  fill(box, content(() => box.close()));
  document.body.append(box);
  box.showModal();
}

/** Returns a labelled control with a place for its error; its name is the field of the request. */
export function field(label, control, note) {
  const id = `field-${(fields += 1)}`;
  control.id = id;
  control.setAttribute("aria-describedby", `${id}-note ${id}-problem`);
  return h("div", { class: "field" }, h("label", { for: id }, label), control,
    h("small", { class: "muted", id: `${id}-note` }, note), h("p", { class: "problem", id: `${id}-problem` }));
}

/** Shows an error in a form: each violation next to its field, all others at the end. */
export function showProblem(form, error) {
  const controls = [...form.elements].filter((one) => one.name);
  const rest = [];
  let first;
  for (const one of controls) one.removeAttribute("aria-invalid");
  for (const place of form.querySelectorAll(".problem")) fill(place);
  for (const { field: name, message } of error?.errors ?? []) {
    const control = controls.find((one) => one.id && (name === one.name || name.startsWith(`${one.name}.`)));
    if (!control) rest.push(error.message.includes(message) ? "" : ` ${name}: ${message}`);
    else fill(document.getElementById(`${control.id}-problem`), message);
    control?.setAttribute("aria-invalid", "true");
    control?.closest("details")?.setAttribute("open", "");
    first ??= control;
  }
  if (error) fill(form.querySelector("[role=alert]"), first && !rest.length ? "Correct the marked fields." : [error.message, rest]);
  first?.focus();
}

/** Returns a function that sends a request. A repeated attempt has the same idempotency key. */
export function sender(method = "POST") {
  let last = {};
  return async (path, body) => {
    const request = JSON.stringify([path, body]);
    if (last.request !== request) last = { request, key: [...crypto.getRandomValues(new Uint32Array(4))].join("-") };
    const answer = await send(method, path, body, { "Idempotency-Key": last.key });
    last = {};
    return answer;
  };
}

/** Returns a form for one request; `request` returns its path and body, `done` gets the answer. */
export function requestForm({ method, request, done, action, danger, close, title }, ...content) {
  const submit = sender(method);
  const button = h("button", { class: danger ? "danger" : "primary" }, action);
  const form = h("form", { novalidate: true }, h("h2", {}, title), content,
    h("p", { class: "problem", role: "alert" }),
    h("div", { class: "row" }, h("button", { type: "button", on: { click: close } }, "Close"), button));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (button.disabled) return;
    button.disabled = true;
    try {
      const answer = await submit(...request(form));
      close();
      done(answer);
    } catch (error) {
      button.disabled = false;
      button.focus();
      showProblem(form, error);
    }
  });
  return form;
}

/** Returns fields for limits; `values` are those that apply if a field stays empty. */
export function limitFields(names = DEFAULT_VALUE_LIMITS, values = null) {
  return names.map((name) => field(UNITS[name] ?? LIMITS[name][0],
    h("input", { name: `budget.${name}`, type: "number", min: "0", step: "any", placeholder: values ? values[name] ?? "unlimited" : "default" })));
}

/** Returns the limits that were filled in; undefined if there are none. */
export function limitsOf(form) {
  const given = [...form.elements].filter((one) => one.name.startsWith("budget.") && one.value !== "");
  return given.length ? Object.fromEntries(given.map((one) => [one.name.slice(7), Number(one.value)])) : undefined;
}

/** Returns fields for named values; `specs` are those of an agent, or have the type "any". */
export function inputFields(specs) {
  return Object.entries(specs).map(([name, spec]) => {
    const { type, description, required, default: usual } = spec;
    const given = { name: `inputs.${name}`, placeholder: usual === undefined || usual === null ? null : `default: ${JSON.stringify(usual)}` };
    const control = type === "boolean" ? h("select", given, [["", "Not set"], ["true", "Yes"], ["false", "No"]].map(([value, label]) => h("option", { value }, label)))
      : type === "number" || type === "integer" ? h("input", { ...given, type: "number", step: "any" })
        : h("textarea", { ...given, class: type === "string" ? "prose short" : "short", rows: 2 });
    const optional = required === false || given.placeholder ? "optional" : null;
    const form = { any: "JSON or text", array: "a JSON array", object: "a JSON object" }[type] ?? type;
    return field(name, control, [[form, optional].filter(Boolean).join(", "), description && `. ${description}`]);
  });
}

/** Returns the values that were filled in; undefined if there are none. */
export function inputsOf(form, specs) {
  const given = Object.entries(specs).map(([name, { type }]) => [name, valueOf(form.elements[`inputs.${name}`], type)])
    .filter(([, value]) => value !== undefined);
  return given.length ? Object.fromEntries(given) : undefined;
}

function valueOf({ name, value }, type) {
  if (value === "") return undefined;
  if (type === "string") return value;
  try {
    return JSON.parse(value);
  } catch (error) {
    if (type === "any" && !/^\s*[[{"]/.test(value)) return value;
    throw Object.assign(new Error(), { errors: [{ field: name, message: `This is not valid JSON: ${error.message}` }] });
  }
}

/** Returns a field that selects an agent or a graph; its values are "", "agents/…" and "graphs/…". */
export async function definitionField(label, other, chosen) {
  const option = (what, name) => h("option", { value: `${what}/${name}` }, name);
  const select = h("select", { name: "definition" }, chosen ? option(...chosen.split("/"))
    : await Promise.all([["Agents", "agents"], ["Graphs", "graphs"]].map(async ([title, what]) => {
      const { [what]: items } = await get(`/${what}`, { limit: 100 });
      return items.length > 0 && h("optgroup", { label: title }, items.map(({ name }) => option(what, name)));
    })), chosen ? null : h("option", { value: "" }, other));
  return [select, field(label, select)];
}

/** Returns the reference to the selected agent or graph, under the name of its kind. */
export function reference(value) {
  const [what, name] = value.split("/");
  return { [what.slice(0, -1)]: { name } };
}

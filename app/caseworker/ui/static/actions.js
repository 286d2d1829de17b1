// What can be done to a run: start it, stop it, and go on from it.

import { get, root, runPath } from "./api.js";
import { h } from "./dom.js";
import { dialog, field, inputFields, inputsOf, limitFields, limitsOf, requestForm } from "./forms.js";
import { between, duration, instant, LIMITS } from "./format.js";
import { badge, words } from "./status.js";

/** Asks whether a run is to be stopped, stops it, and shows the receipt. */
export function cancelRun(run) {
  dialog("Cancel this run", (close) => {
    const reason = h("input", { name: "reason", maxlength: "500", autocomplete: "off", placeholder: "Shown in the receipt and in the trace" });
    return requestForm({
      title: "Cancel this run?",
      action: "Cancel the run",
      danger: true,
      close,
      request: () => [runPath(run.run_id, "cancel"), { reason: reason.value || undefined }],
      done: (receipt) => dialog("Receipt", (shut) => receiptOf(receipt, shut)),
    },
    h("p", { class: "muted" }, "In-flight calls are aborted. Completed results and their cost are kept."),
    field("Reason", reason));
  });
}

function receiptOf(receipt, close) {
  const facts = [
    ["Requested", instant(receipt.requested_at)],
    ["By", receipt.requested_by ?? "–"],
    ["Delivered", receipt.delivered_at ? `after ${duration(between(receipt.requested_at, receipt.delivered_at))}` : "not yet"],
    ["Settled", receipt.settled_at ? `after ${duration(between(receipt.requested_at, receipt.settled_at))}` : "not yet"],
    ["Reason", receipt.reason ?? "–"],
  ];
  return h("div", { class: "stack receipt" },
    h("div", { class: "row" }, h("h2", {}, "Receipt"), receipt.status && badge(receipt.status)),
    h("p", {}, receipt.already_finished ? "The run has already ended; nothing was changed." : "The cancel request is stored. No new calls of this run start."),
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    receipt.calls.length ? h("div", {},
      h("h3", {}, "Calls started before the request"),
      h("ul", { class: "tries" }, receipt.calls.slice(0, 50).map((call) =>
        h("li", {}, h("strong", {}, call.name), ` · ${call.kind} · ${words(call.status)}`)))) : h("p", { class: "muted" }, "No calls had started."),
    h("div", { class: "row" }, h("button", { type: "button", class: "primary", on: { click: close } }, "Close")));
}

/** Starts a run that imports the finished work of another one, all of it or up to a call. */
export function goOnFrom(run, until, go) {
  dialog("Resume this run", (close) => {
    const input = h("textarea", { name: "input", placeholder: "Default: the original input" });
    return requestForm({
      title: until ? `Resume from ${until}` : "Resume this run",
      action: "Start the run",
      close,
      request: (form) => ["/runs", { from: { run_id: run.run_id, ...(until ? { until } : {}) }, budget: limitsOf(form), input: input.value || undefined }],
      done: (begun) => go(`${root}/ui${runPath(begun.run_id)}`),
    },
    h("p", { class: "muted" }, until
      ? "A new run reuses all calls up to and including this one at no cost, and continues from there."
      : "A new run reuses all successful calls at no cost, and executes the rest."),
    field("Input", input),
    h("fieldset", {}, h("legend", {}, "New limits"), limitFields(Object.keys(LIMITS), run.limits)));
  });
}

/** Runs a registered agent or graph with inputs, limits and a model that a form asks for. */
export async function runDefinition(one, what, go) {
  const inputs = one.agent ? one.agent.inputs ?? {} : inputsOfGraph(one);
  const names = one.agent ? Object.keys((await get("/models")).models) : [];
  const definition = { name: one.name, version: one.version };
  dialog(`Run ${one.name}`, (close) => requestForm({
    title: `Run ${one.name} @${one.version}`,
    action: "Run",
    close,
    request: (form) => {
      const { model, input } = form.elements;
      return ["/runs", {
        ...(one.agent ? { kind: "agent", agent: definition, input: input.value || undefined } : { kind: "graph", graph: definition }),
        inputs: inputsOf(form, inputs),
        model: model?.value ? { name: model.value } : undefined,
        budget: limitsOf(form),
      }];
    },
    done: (begun) => go(`${root}/ui${runPath(begun.run_id)}`),
  },
  one.agent && field("Input", h("textarea", { name: "input", class: "prose" }), "The request to the agent."),
  inputFields(inputs),
  names.length > 0 && field("Model", h("select", { name: "model" }, h("option", { value: "" }, "As defined"), names.map((name) => h("option", { value: name }, name)))),
  h("fieldset", {}, h("legend", {}, "Limits"), limitFields())));
}

/** Returns the input handles that the first steps of a graph read; `default` is always one. */
function inputsOfGraph({ graph, shape }) {
  const found = new Set(["default"]);
  const first = graph.steps.filter(({ id }) => shape.layers[0]?.includes(id));
  const texts = JSON.stringify(first.map(({ data }) => data), (key, value) => {
    if (["agent", "graph", "step"].includes(key)) return undefined; // their placeholders are not those of the step
    if ((key === "over" || key === "path") && typeof value === "string") found.add(value.split(".")[0]);
    return value;
  });
  for (const [, name] of texts.matchAll(/(?<!\$)\$\{([A-Za-z0-9_-]+)/g)) found.add(name);
  return Object.fromEntries([...found].map((name) => [name, { type: "any", required: false }]));
}

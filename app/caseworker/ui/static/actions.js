// What can be done to a run: stop it, and go on from it.

import { root, runPath, send } from "./api.js";
import { fill, h } from "./dom.js";
import { between, duration, instant, LIMITS } from "./format.js";
import { badge, words } from "./status.js";

/** Opens a dialog; `content` is given what closes it. */
export function dialog(label, content) {
  const box = h("dialog", { "aria-label": label, on: { close: () => box.remove() } });
  fill(box, content(() => box.close()));
  document.body.append(box);
  box.showModal();
}

/** Asks whether a run is to be stopped, stops it, and shows the receipt. */
export function cancelRun(run) {
  dialog("Cancel this run", (close) => {
    const reason = h("input", { id: "reason", maxlength: "500", autocomplete: "off", placeholder: "Shown in the receipt and in the trace" });
    const message = h("p", { class: "problem", role: "alert" });
    const form = h("form", {},
      h("h2", {}, "Cancel this run?"),
      h("p", { class: "muted" }, "In-flight calls are aborted. Completed results and their cost are kept."),
      h("label", { for: "reason" }, "Reason"), reason, message,
      h("div", { class: "row" },
        h("button", { type: "button", on: { click: close } }, "Do not cancel"),
        h("button", { class: "danger" }, "Cancel the run")));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      try {
        const receipt = await send("POST", runPath(run.run_id, "cancel"), reason.value ? { reason: reason.value } : {});
        form.replaceWith(receiptOf(receipt, close));
      } catch (error) {
        fill(message, error.message);
      }
    });
    return form;
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

/** Begins a run that takes over what another has done, all of it or up to a call. */
export function goOnFrom(run, until, go) {
  dialog("Resume this run", (close) => {
    const input = h("textarea", { id: "input", placeholder: "Default: the original input" });
    const limits = Object.entries(LIMITS).map(([name, [title]]) =>
      h("label", {}, title, h("input", { name, type: "number", min: "0", step: "any", placeholder: run.limits[name] ?? "unlimited" })));
    const message = h("p", { class: "problem", role: "alert" });
    const form = h("form", {},
      h("h2", {}, until ? `Resume from ${until}` : "Resume this run"),
      h("p", { class: "muted" }, until
        ? "A new run reuses all calls up to and including this one at no cost, and continues from there."
        : "A new run reuses all successful calls at no cost, and executes the rest."),
      h("label", { for: "input" }, "Input"), input,
      h("fieldset", {}, h("legend", {}, "New limits"), limits),
      message,
      h("div", { class: "row" },
        h("button", { type: "button", on: { click: close } }, "Close"),
        h("button", { class: "primary" }, "Start the run")));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const budget = Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== "").map(([name, value]) => [name, Number(value)]));
      const body = { from: { run_id: run.run_id, ...(until ? { until } : {}) } };
      if (Object.keys(budget).length) body.budget = budget;
      if (input.value) body.input = input.value;
      try {
        const begun = await send("POST", "/runs", body);
        close();
        go(`${root}/ui${runPath(begun.run_id)}`);
      } catch (error) {
        fill(message, [error.message, ...error.errors.map((one) => ` ${one.field}: ${one.message}`)]);
      }
    });
    return form;
  });
}

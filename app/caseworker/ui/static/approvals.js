// What a run asks people, and what they decide.

import { get, refusal, runPath, send } from "./api.js";
import { fill, h, shown } from "./dom.js";
import { ago, instant } from "./format.js";
import { badge, words } from "./status.js";

/** Shows the approvals of a run; those that are open can be decided. */
export async function approvals(place, run, signal) {
  const [refused, found] = await Promise.all([
    refusal("approve"),
    get(runPath(run.run_id, "approvals"), {}, signal).catch(() => ({ approvals: [] })),
  ]);
  if (signal.aborted) return;
  const now = JSON.stringify(found.approvals);
  if (place.dataset.shown === now) return; // a user may be typing in it
  place.dataset.shown = now;
  const open = found.approvals.filter((one) => one.open);
  const decided = found.approvals.filter((one) => one.decision);
  fill(place, open.map((one) => question(one, refused)), decided.length ? h("section", { class: "card" }, h("h2", {}, "Decisions"),
    h("ul", { class: "tries" }, decided.map(({ subject, decision }) =>
      h("li", {}, h("strong", {}, subject), ` ${words(decision.decision)}${decision.by ? ` by ${decision.by}` : ""}, ${instant(decision.at)}`,
        decision.reason ? `: ${decision.reason}` : "")))) : null);
}

function question(one, refused) {
  const id = `arguments-${one.approval_id}`;
  const asked = JSON.stringify(one.arguments, null, 2);
  const changes = one.schema ? h("textarea", { id, spellcheck: "false", disabled: refused, value: asked }) : null;
  const reason = h("input", { disabled: refused, "aria-label": "Reason", placeholder: "Reason (sent to the agent if refused)" });
  const message = h("p", { class: "problem", role: "alert" });
  const decide = async (decision) => {
    const body = { decision };
    if (reason.value) body.reason = reason.value;
    try {
      if (decision === "approve" && changes && changes.value !== asked) body.arguments = JSON.parse(changes.value);
      await send("POST", runPath(one.run_id, "approvals", one.approval_id), body);
      fill(message);
      for (const button of box.querySelectorAll("button")) button.disabled = true;
    } catch (error) {
      const told = error instanceof SyntaxError ? `The arguments are not valid JSON: ${error.message}` : error.message;
      fill(message, told);
    }
  };
  const box = h("section", { class: "card approval", "aria-label": `Approval of ${one.subject}` },
    h("div", { class: "row" }, badge("waiting"), h("h2", {}, `Approve ${one.subject}?`),
      h("span", { class: "muted" }, `asked ${ago(one.requested_at)}, until ${instant(one.expires_at)}`)),
    one.message ? h("p", {}, one.message) : null,
    changes ? [h("label", { for: id }, "Arguments (may be changed)"), changes] : [h("h3", {}, "Arguments"), shown(one.arguments)],
    message,
    h("div", { class: "row" }, reason,
      h("button", { type: "button", class: "primary", disabled: refused, title: refused, on: { click: () => decide("approve") } }, "Approve"),
      h("button", { type: "button", class: "danger", disabled: refused, title: refused, on: { click: () => decide("refuse") } }, "Refuse")),
    refused && h("p", { class: "muted" }, refused));
  return box;
}

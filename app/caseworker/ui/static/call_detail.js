// One call: what it asked, what it got, what it used, what went wrong.

import { get, runPath } from "./api.js";
import { fill, h, shown } from "./dom.js";
import { between, count, duration, instant, money } from "./format.js";
import { itemsOf } from "./items.js";
import { badge, words } from "./status.js";

export class CallDetail {
  constructor(runId, { closed, goOn, signal }) {
    Object.assign(this, { runId, closed, goOn, signal });
    this.element = h("aside", { class: "card detail", "aria-label": "Call", tabindex: "-1", hidden: true,
      on: { keydown: (event) => event.key === "Escape" && this.close() } });
  }

  /** Shows a call; what is being shown is asked for again when its status changes. */
  async show(call, { focus = false } = {}) {
    const key = `${call.id} ${call.status} ${call.end}`;
    this.element.hidden = false;
    if (this.key !== key) {
      this.key = key;
      this.id = call.id;
      try {
        const details = await get(runPath(this.runId, "calls", call.id), {}, this.signal);
        if (this.key === key) fill(this.element, this.#content(call, details));
      } catch (error) {
        if (this.signal.aborted) return;
        fill(this.element, this.#head(call), h("p", { class: "problem" }, error.message));
      }
    }
    if (focus) this.element.focus();
  }

  close() {
    this.element.hidden = true;
    this.key = this.id = null;
    this.closed();
  }

  #head(call) {
    return h("div", { class: "detail-head" },
      h("h2", {}, call.title),
      h("button", { type: "button", class: "quiet icon", "aria-label": "Close", on: { click: () => this.close() } }, "✕"));
  }

  #content(call, details) {
    const { usage, metadata } = details;
    const estimated = metadata.estimated;
    const facts = [
      ["Status", badge(details.status)],
      ["Time", duration(between(details.started_at, details.finished_at))],
      ["Began", instant(details.started_at)],
      details.model && ["Model", details.model],
      usage.tokens_in !== null && ["Tokens", [`${count(usage.tokens_in)} in, ${count(usage.tokens_out)} out`,
        estimated && h("small", {}, `${count((estimated.tokens_in ?? 0) + (estimated.tokens_out ?? 0))} estimated`)]],
      (details.kind !== "system" || usage.cost_usd) && ["Cost", [money(usage.cost_usd),
        estimated?.cost_usd ? h("small", {}, `${money(estimated.cost_usd)} estimated`) : null]],
      details.retries > 0 && ["Retries", count(details.retries)],
      metadata.overrun_tokens && ["Overrun", [`${count(metadata.overrun_tokens)} tokens`, h("small", {}, "more than reserved")]],
      metadata.overrun_usd && ["Overrun", [money(metadata.overrun_usd), h("small", {}, "more than reserved")]],
      metadata.waited_ms && ["Waited for budget", duration(metadata.waited_ms)],
      metadata.waited_for_model_ms && ["Waited for provider", duration(metadata.waited_for_model_ms)],
      ["Id", h("span", { class: "mono" }, details.node_id)],
      details.path && ["Path", h("span", { class: "mono" }, details.path), "long"],
    ].filter(Boolean);
    const taken = metadata.taken_over;
    return [
      this.#head(call),
      taken && h("p", { class: "muted" }, `Taken over from run ${taken.run_id}: it took no time here and cost nothing.`),
      details.reason && h("p", { class: "banner banner-halted" }, h("span", { hidden: true }), h("span", {}, details.reason)),
      details.error && failure(details.error),
      h("dl", { class: "facts" }, facts.map(([name, value, size]) => h("div", { class: size }, h("dt", {}, name), h("dd", {}, value)))),
      details.attempts.length > 0 && tries(details.attempts),
      metadata.step_type === "map" && items(details.reply?.items),
      request(details),
      reply(details),
      details.payloads === "none" && h("p", { class: "muted" }, "This service does not store requests and replies."),
      Object.keys(metadata).length > 0 && h("details", {}, h("summary", {}, "Metadata"), shown(metadata)),
      this.goOn && call.parent && call.status === "completed" && call.sort !== "attempt" &&
        h("div", {}, h("button", { type: "button", on: { click: () => this.goOn(call.id) } }, "Resume from here…")),
    ];
  }
}

function failure(error) {
  return h("div", { class: "banner banner-failed" }, h("span", { class: "tag tag-bad" }, error.error_class),
    h("span", {}, error.message ?? "", " ", h("span", { class: "muted" }, `(${words(error.handling)})`)));
}

function tries(attempts) {
  return h("section", {}, h("h3", {}, "Attempts"), h("ol", { class: "tries" }, attempts.map((one) =>
    h("li", {},
      h("div", { class: "row" }, h("strong", {}, `${one.attempt}.`), badge(one.status),
        h("span", { class: "muted" }, duration(between(one.started_at, one.finished_at))),
        one.error && h("span", { class: "tag tag-bad" }, one.error.error_class),
        one.error && h("span", { class: "tag" }, words(one.error.handling))),
      one.error?.message && h("p", {}, one.error.message)))));
}

function items(reported) {
  const known = itemsOf(reported);
  return known && block("Items", known);
}

function request({ kind, request: asked }) {
  if (asked === null || asked === undefined) return null;
  if (kind === "tool" && "args" in asked) return block("Arguments", shown(asked.args));
  if (kind !== "llm" || !Array.isArray(asked.messages)) return block(kind === "system" ? "Inputs" : "Request", shown(asked));
  const { messages, messages_left_out, ...rest } = asked;
  return [
    block("Prompt",
      messages_left_out ? h("p", { class: "muted" }, `${count(messages_left_out)} older messages are not shown.`) : null,
      messages.map(said)),
    h("details", {}, h("summary", {}, "Request settings"), shown(rest)),
  ];
}

function said(message) {
  const { role, content, ...rest } = message;
  const more = Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== null && value?.length !== 0));
  return h("div", { class: `said said-${["user", "assistant", "tool"].includes(role) ? role : "system"}` },
    h("strong", {}, role),
    content ? h("pre", { tabindex: "0" }, typeof content === "string" ? content : JSON.stringify(content, null, 2)) : null,
    Object.keys(more).length ? shown(more) : null);
}

function reply({ kind, reply: got }) {
  if (got === null || got === undefined) return null;
  if (kind !== "llm" || typeof got !== "object") return block(kind === "tool" ? "Result" : "Outputs", shown(got));
  const { text, ...rest } = got;
  return [
    block("Reply", text ? shown(text) : null, rest.tool_calls?.length ? shown(rest.tool_calls) : null),
    h("details", {}, h("summary", {}, "Further fields of the reply"), shown(rest)),
  ];
}

function block(title, ...content) {
  return h("section", {}, h("h3", {}, title), content);
}

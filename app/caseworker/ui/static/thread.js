// A conversation: one branch of it, answers as they are written, and a field for the next message.

import { events, get, refusal, root, runPath, send } from "./api.js";
import { approvals } from "./approvals.js";
import { add, announce, fill, h, nothing, oncePerFrame, shown, since } from "./dom.js";
import { limitFields, limitsOf, sender, showProblem } from "./forms.js";
import { counted, money } from "./format.js";
import { badge, ENDED } from "./status.js";

const WORKING = new Set(["queued", "running", "waiting"]);
const INCOMPLETE = {
  length: "cut off by the token limit", content_filter: "withheld by a content filter", refusal: "refused by the model",
  empty: "empty", cancelled: "stopped", timeout: "timed out", error: "broken off",
};

export async function show(context) {
  await new Chat(context).open(context.query.get("leaf"));
}

class Chat {
  constructor({ main, params: [threadId], signal }) {
    Object.assign(this, { main, signal, path: `/threads/${encodeURIComponent(threadId)}` });
    this.runs = new Map();
    this.submit = sender();
    this.branch = new AbortController();
    signal.addEventListener("abort", () => this.branch.abort(), { once: true });
    this.talk = h("div", { class: "conversation", role: "log", "aria-live": "off", "aria-label": "Conversation" });
  }

  async open(leaf) {
    let thread;
    [thread, this.refused] = await Promise.all([get(this.path, {}, this.signal), refusal("run")]);
    const title = thread.title ?? thread.thread_id;
    const answering = thread.agent ?? thread.graph;
    document.title = `${title} · Caseworker`;
    this.composer = this.#composer();
    fill(this.main,
      h("div", { class: "page-head" }, h("h1", {}, title),
        h("span", { class: "tag" }, thread.agent ? "agent" : "graph"),
        h("span", { class: "muted" }, answering.name ? `${answering.name}, ` : "", "started ", since(thread.created_at))),
      h("details", {}, h("summary", {}, "Agent or graph"), shown(answering)),
      this.talk, this.composer);
    this.text.focus({ preventScroll: true });
    await this.load(leaf);
  }

  /** Shows the branch through a message, or the newest one, and follows an answer in progress. */
  async load(leaf) {
    const { messages } = await get(`${this.path}/messages`, { leaf }, this.signal);
    await this.#loadRuns(messages.filter(({ status }) => ENDED.has(status) || WORKING.has(status)).map((one) => one.run_id));
    if (this.signal.aborted) return;
    if (leaf) history.replaceState(null, "", `${root}/ui${this.path}?leaf=${encodeURIComponent(leaf)}`);
    this.branch.abort();
    this.branch = new AbortController();
    this.last = messages.at(-1);
    const down = keptDown();
    messages.forEach((one, at) => {
      const now = JSON.stringify(one);
      const old = this.talk.children[at];
      if (old?.dataset.shown === now && ENDED.has(one.status ?? "completed")) return; // it may hold a draft
      const article = this.#message(one);
      article.dataset.shown = now;
      if (old) old.replaceWith(article);
      else this.talk.append(article);
    });
    while (this.talk.children.length > messages.length) this.talk.lastChild.remove();
    if (!messages.length) fill(this.talk, nothing("No messages yet.", this.refused ? null : "Write the first one below."));
    const working = WORKING.has(this.last?.status);
    this.button.hidden = working;
    this.stop.hidden = !working;
    this.stop.disabled = false;
    down();
    if (working) this.#follow(this.last, this.talk.lastChild, this.branch.signal);
  }

  /** Loads cost and stop reason of the answers that have ended. */
  async #loadRuns(wanted) {
    const missing = new Set(wanted.filter((id) => !ENDED.has(this.runs.get(id)?.status)));
    for (let cursor; missing.size && cursor !== null;) {
      const page = await get("/runs", { thread_id: decodeURIComponent(this.path.slice(9)), limit: 100, cursor }, this.signal);
      for (const run of page.runs) {
        this.runs.set(run.run_id, run);
        missing.delete(run.run_id);
      }
      cursor = page.next_cursor;
    }
  }

  async #follow({ run_id: runId, message_id: id }, article, signal) {
    announce("Answering.");
    const place = article.querySelector(".message-text");
    const asked = article.querySelector(".asked");
    const calls = article.querySelector(".tool-calls ul");
    const turns = new Map();
    let newest;
    const draw = oncePerFrame(() => {
      const down = keptDown();
      fill(place, turns.get(newest).join(""));
      down();
    });
    try {
      for await (const { type, step_id: step, data } of events(runId, { signal })) {
        if (type === "content_chunk" && !step.includes("/turn/")) {
          const turn = `${step}/${data.turn_number}`;
          if (!turns.has(turn)) turns.set((newest = turn), []);
          const text = turns.get(turn);
          text.length = Math.min(text.length, data.offset); // offsets count characters, not UTF-16 units
          text.push(...data.content);
          draw();
        } else if (type.startsWith("tool_call_")) {
          toolCall(calls, data);
          calls.parentNode.hidden = false;
        } else if (type.startsWith("approval.")) {
          approvals(asked, { run_id: runId }, signal).then(keptDown());
          if (data.arguments_changed) showChanges(calls, runId, signal).catch(() => {});
          if (type === "approval.requested") announce(`${data.subject} needs an approval.`);
        }
      }
      if (signal.aborted) return;
      await this.load(id);
      announce(`${this.last.incomplete ? "Incomplete answer" : "Answer"}: ${this.last.content ?? this.last.status}`.slice(0, 2000));
    } catch (error) {
      if (!signal.aborted) showProblem(this.composer, error);
    }
  }

  #message(one) {
    const { role, content, status, incomplete } = one;
    const [answers, working, run] = [role === "assistant", WORKING.has(status), this.runs.get(one.run_id)];
    const reason = one.incomplete_reason ?? run?.stop?.reason;
    const button = (label, click) => h("button", { type: "button", class: "quiet", on: { click } }, label);
    const meta = h("div", { class: "message-meta" },
      working ? h("span", { class: "live" }, "Live") : answers && status !== "completed" && badge(status),
      incomplete && h("span", { class: "tag tag-warn" }, `incomplete: ${INCOMPLETE[incomplete] ?? incomplete}`),
      one.created_at && since(one.created_at),
      one.model && h("span", {}, one.model),
      run?.usage && h("span", { title: "Cost" }, money(run.usage.cost_usd ?? run.usage.cost_usd_known)),
      one.run_id && status !== "not_started" && status !== "erased" && h("a", { href: `${root}/ui${runPath(one.run_id)}` }, "Run"),
      one.siblings.length > 1 && this.#branches(one),
      this.refused || working ? null : answers
        ? [button("Retry", () => this.#ask(`/${one.message_id}/retry`)), status !== "completed" && run && button("Continue", () => this.#ask(`/${one.message_id}/continue`))]
        : button("Edit", () => this.#edit(one, article)));
    const text = answers && content === null
      ? working ? h("span", { class: "typing" }, "…") : h("span", { class: "muted" }, "No answer.") : content;
    const article = h("article", { class: `message message-${role}`, "aria-label": answers ? "Answer" : "You" },
      answers && toolCalls(one, run, working, this.signal),
      h("div", { class: "message-text" }, text),
      answers && !working && status !== "completed" && reason && h("p", { class: "reason" }, reason),
      working && h("div", { class: "asked stack" }),
      meta);
    return article;
  }

  #branches({ message_id: id, siblings, role }) {
    const at = siblings.indexOf(id);
    const what = role === "assistant" ? "answer" : "wording";
    const to = (step, label, sign) => {
      const other = siblings[at + step];
      return h("button", { type: "button", class: "quiet", disabled: !other, "aria-label": label, on: { click: async ({ target }) => {
        const place = [...this.talk.children].indexOf(target.closest("article"));
        await this.load(other);
        const buttons = [...this.talk.children[place].querySelectorAll(".branches button")];
        (buttons.find((one) => one.getAttribute("aria-label") === label && !one.disabled) ?? buttons.find((one) => !one.disabled)).focus();
      } } }, sign);
    };
    return h("span", { class: "branches", role: "group", "aria-label": counted(siblings.length, what) },
      to(-1, `Earlier ${what}`, "‹"), `${at + 1} of ${siblings.length}`, to(1, `Later ${what}`, "›"));
  }

  /** Replaces a message by a field with its text. Sending it creates a branch. */
  #edit(one, article) {
    const text = h("textarea", { class: "prose", "aria-label": "Edited message", value: one.content });
    const close = () => {
      const fresh = this.#message(one);
      fresh.dataset.shown = article.dataset.shown;
      article.replaceWith(fresh);
      fresh.querySelector("button:last-child").focus();
    };
    const form = h("form", { class: "edit" }, text, h("div", { class: "row" },
      h("button", { type: "button", on: { click: close } }, "Cancel"), h("button", { class: "primary" }, "Send")));
    this.#keys(form, text, close);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#ask(`/${one.message_id}/edit`, { content: text.value });
    });
    fill(article, form);
    text.focus();
  }

  #composer() {
    this.text = h("textarea", { name: "content", class: "prose", rows: 1, "aria-label": "Message", placeholder: "Write a message" });
    this.button = h("button", { class: "primary" }, "Send");
    this.stop = h("button", { type: "button", class: "danger", hidden: true, on: { click: () => this.#stop() } }, "Stop");
    const problem = h("p", { class: "problem", role: "alert" });
    if (this.refused) {
      return h("form", { class: "composer card" }, h("p", { class: "muted" }, `${this.refused} You can read this chat.`), problem);
    }
    const form = h("form", { class: "composer card" }, this.text, problem,
      h("div", { class: "row" },
        h("details", {}, h("summary", {}, "Limits of each answer"), h("fieldset", { "aria-label": "Limits" }, limitFields())),
        h("small", { class: "muted hint" }, "Enter sends, Shift+Enter starts a line"), this.stop, this.button));
    this.#keys(form, this.text);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const content = this.text.value;
      if (WORKING.has(this.last?.status) || !content.trim()) return;
      this.text.value = "";
      if (!(await this.#ask("", { content, parent_id: this.last?.message_id }))) this.text.value ||= content;
    });
    return form;
  }

  #keys(form, text, close) {
    text.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close?.();
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      form.requestSubmit();
    });
  }

  /** Requests an answer and shows it; returns whether the service accepted the request. */
  async #ask(action, body = {}) {
    if (this.busy) return false;
    this.busy = true;
    showProblem(this.composer);
    let turn = null;
    try {
      turn = await this.submit(`${this.path}/messages${action}`, { ...body, budget: limitsOf(this.composer) });
      await this.load(turn.assistant.message_id);
      this.text.focus({ preventScroll: true });
      scrollTo(0, document.body.scrollHeight);
    } catch (error) {
      if (!this.signal.aborted) showProblem(this.composer, error);
    }
    this.busy = false;
    return turn !== null;
  }

  async #stop() {
    this.stop.disabled = true;
    try {
      await send("POST", runPath(this.last.run_id, "cancel"), {});
      this.text.focus({ preventScroll: true });
    } catch (error) {
      this.stop.disabled = false;
      showProblem(this.composer, error);
    }
  }
}

/** Returns a function that scrolls to the end of the page, if its end is visible now. */
function keptDown() {
  const below = innerHeight + scrollY > document.body.scrollHeight - 120;
  return () => below && scrollTo(0, document.body.scrollHeight);
}

/** Returns the tool calls of an answer: as they happen, or loaded when they are opened. */
function toolCalls({ run_id: runId }, run, working, signal) {
  const { tool_calls: number = 0, llm_calls: answers = 0 } = run?.usage ?? {};
  if (!working && !number && answers < 2) return null; // a refused call does not count, but the model is asked again
  const list = h("ul", {});
  const load = async () => {
    if (working || list.childNodes.length) return;
    let changed = false;
    for (let after = 0; after !== null;) {
      const page = await get(runPath(runId, "events"), { after, limit: 1000 }, signal);
      for (const { type, data } of page.events) {
        if (type.startsWith("tool_call_")) toolCall(list, data);
        changed ||= data.arguments_changed;
      }
      after = page.next_after;
    }
    if (changed) await showChanges(list, runId, signal);
    list.append(h("li", {}, h("a", { href: `${root}/ui${runPath(runId)}` }, "Show the run")));
  };
  return h("details", { class: "tool-calls", open: working, hidden: working, on: { toggle: load } },
    h("summary", {}, working || !number ? "Tool calls" : counted(number, "tool call")), list);
}

function toolCall(list, data) {
  const { id, name, arguments: given } = data.tool_call ?? {};
  if (id) return list.append(h("li", { dataset: { call: id, asked: `${name} ${given}`.replace(/\s/g, "") } }, h("code", {}, name), h("span", {}, ` ${given} `)));
  const item = [...list.children].findLast((one) => one.dataset.call === data.tool_call_id);
  const state = !data.error ? "done" : /"code": ?"approval_/.test(data.result) ? "refused" : "failed";
  if (item) add(item, [h("span", { class: `tag tag-${data.error ? "bad" : "ok"}` }, state), data.error && ` ${data.error}`]);
}

/** Shows the arguments that approvers changed. */
async function showChanges(list, runId, signal) {
  const { approvals: all } = await get(runPath(runId, "approvals"), {}, signal);
  for (const { approval_id: id, subject, arguments: given, decision } of all) {
    const asked = (subject + JSON.stringify(given)).replace(/\s/g, "");
    const item = [...list.children].find(({ dataset }) => (dataset.decided ? dataset.decided === id : dataset.asked === asked));
    if (!item) continue;
    item.dataset.decided = id;
    if (decision?.arguments) fill(item.children[1], ` ${JSON.stringify(decision.arguments)} (changed by the approver) `);
  }
}

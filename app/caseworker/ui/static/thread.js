// A conversation: what was said on one branch, and the ways to the others.

import { get, pause, root, runPath, send } from "./api.js";
import { fill, h, nothing, shown } from "./dom.js";
import { ago, counted, instant } from "./format.js";
import { badge, ENDED } from "./status.js";

const WORKING = new Set(["queued", "running", "waiting"]);

export async function show({ main, params: [threadId], signal, query, go }) {
  const path = `/threads/${encodeURIComponent(threadId)}`;
  const thread = await get(path, {}, signal);
  document.title = `${thread.title ?? threadId} · Caseworker`;
  const talk = h("div", { class: "conversation", role: "log", "aria-label": "Conversation" });
  const answering = thread.agent ?? thread.graph;
  fill(main,
    h("div", { class: "page-head" }, h("h1", {}, thread.title ?? thread.thread_id),
      h("span", { class: "tag" }, thread.agent ? "agent" : "graph"),
      h("span", { class: "muted" }, answering.name ? `${answering.name}, ` : "", `begun ${instant(thread.created_at)}`),
      h("div", { class: "end" })),
    talk,
    h("details", { class: "card" }, h("summary", {}, "Agent or graph"), shown(answering)));
  for (;;) {
    const leaf = query.get("leaf");
    const { messages } = await get(`${path}/messages`, { leaf }, signal);
    const works = messages.some((one) => WORKING.has(one.status));
    const now = JSON.stringify(messages);
    if (talk.dataset.shown !== now) {
      talk.dataset.shown = now;
      fill(talk, messages.length ? messages.map((one) => message(one)) : nothing("No messages."));
      fill(main.querySelector(".end"), works ? [h("span", { class: "live" }, "Live"), stop()] : null);
    }
    if (!works) return;
    await pause(1000, signal);
    if (signal.aborted) return;
  }

  function stop() {
    return h("button", { type: "button", class: "danger", on: { click: () => send("POST", `${path}/cancel`, {}) } }, "Stop answering");
  }

  function message(one) {
    const answers = one.role === "assistant";
    return h("article", { class: `message message-${one.role}`, "aria-label": one.role },
      one.content === null && !answers ? null : h("div", { class: "message-text" }, one.content ?? (ENDED.has(one.status) ? "(no answer)" : "…")),
      h("div", { class: "message-meta" },
        answers && one.status ? badge(one.status) : h("span", {}, one.role),
        one.created_at && h("time", { datetime: one.created_at, title: instant(one.created_at) }, ago(one.created_at)),
        one.run_id && h("a", { href: `${root}/ui${runPath(one.run_id)}` }, "Run"),
        one.siblings.length > 1 ? branches(one) : null));
  }

  function branches({ message_id: id, siblings, role }) {
    const at = siblings.indexOf(id);
    const to = (step, label, sign) => {
      const other = siblings[at + step];
      return h("button", { type: "button", class: "quiet", disabled: !other, "aria-label": label,
        on: { click: () => go(`${root}/ui${path}?leaf=${encodeURIComponent(other)}`, { replace: true }) } }, sign);
    };
    const what = role === "assistant" ? "answer" : "wording";
    return h("span", { class: "branches", role: "group", "aria-label": counted(siblings.length, what) },
      to(-1, `Earlier ${what}`, "‹"), `${at + 1} / ${siblings.length}`, to(1, `Later ${what}`, "›"));
  }
}

// The list of conversations, and the form that starts one.

import { get, refusal, root } from "./api.js";
import { fill, h, nothing, since } from "./dom.js";
import { definitionField, dialog, field, inputFields, inputsOf, reference, requestForm } from "./forms.js";
import { listing } from "./listing.js";

const COLUMNS = [["Chat", "cut"], ["Created", "minor"], ["Thread", "mono nowrap wide"], ["Metadata", "wide cut"]];
const ASSISTANT = { name: "assistant", prompt: { system: "You are a helpful assistant." } };

export async function show({ main, signal, go }) {
  const refused = await refusal("run");
  await listing(main, "threads", {
    title: "Chats",
    columns: COLUMNS,
    signal,
    row: (thread) => [
      h("a", { href: `${root}/ui/threads/${encodeURIComponent(thread.thread_id)}` }, thread.title ?? "Untitled"),
      since(thread.created_at),
      thread.thread_id,
      Object.keys(thread.metadata).length ? JSON.stringify(thread.metadata) : "",
    ],
    empty: nothing("No chats.", "In a chat, an agent or a graph answers your messages."),
    actions: [
      refused && h("span", { class: "muted" }, refused),
      h("button", { type: "button", class: "primary", disabled: refused, on: { click: () => newChat(go) } }, "New chat…"),
    ],
  });
}

/** Starts a conversation with a registered agent or graph that a form asks for. */
export async function newChat(go, chosen) {
  const [select, answering] = await definitionField("Answered by", "An assistant without tools", chosen);
  const title = h("input", { name: "title", maxlength: "200", autocomplete: "off", placeholder: "Optional" });
  const place = h("div", { class: "stack" });
  let specs = {};
  const pick = async () => {
    const value = select.value;
    const found = value.startsWith("agents/") ? (await get(`/${value}`)).agent.inputs ?? {} : {};
    if (value !== select.value) return;
    specs = found;
    fill(place, inputFields(specs));
  };
  select.addEventListener("change", pick);
  await pick();
  dialog("New chat", (close) => requestForm({
    title: "New chat",
    action: "Start the chat",
    close,
    request: (form) => ["/threads", {
      ...(select.value ? reference(select.value) : { agent: ASSISTANT }),
      title: title.value || undefined,
      inputs: inputsOf(form, specs),
    }],
    done: ({ thread_id: id }) => go(`${root}/ui/threads/${encodeURIComponent(id)}`),
  }, answering, place, field("Title", title)));
}

// The list of conversations.

import { get, root } from "./api.js";
import { h, nothing } from "./dom.js";
import { ago, instant } from "./format.js";
import { listing } from "./listing.js";

const COLUMNS = [["Thread", ""], ["Title", "cut"], ["Metadata", "wide cut"], ["Created", "minor"]];

export function show({ main, signal }) {
  return listing(main, {
    title: "Chats",
    columns: COLUMNS,
    load: async (cursor) => {
      const page = await get("/threads", { limit: 50, cursor }, signal);
      return { items: page.threads, next: page.next_cursor };
    },
    row: (thread) => [
      h("a", { class: "row-link", href: `${root}/ui/threads/${encodeURIComponent(thread.thread_id)}` }, thread.thread_id),
      thread.title ?? "",
      Object.keys(thread.metadata).length ? JSON.stringify(thread.metadata) : "",
      h("time", { datetime: thread.created_at, title: instant(thread.created_at) }, ago(thread.created_at)),
    ],
    empty: nothing("No chats.", "Start one with POST /threads."),
  });
}

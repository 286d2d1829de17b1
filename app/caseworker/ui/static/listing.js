// A page that is one list, with more of it on demand.

import { get } from "./api.js";
import { announce, fill, h, table } from "./dom.js";

/** Shows the items of `/${what}`; `row` returns the cells of an item. */
export async function listing(main, what, { title, columns, row, empty, head, actions, signal }) {
  const items = [];
  const list = h("section", { class: "card list" });
  const pager = h("div", { class: "pager" });

  async function more(cursor) {
    const page = await get(`/${what}`, { limit: 100, cursor }, signal);
    items.push(...page[what]);
    fill(list, items.length ? table(title, columns, items.map(row)) : empty);
    fill(pager, page.next_cursor && h("button", { type: "button", on: { click: async (event) => {
      event.target.disabled = true;
      await more(page.next_cursor);
      announce(`${items.length} are shown.`);
    } } }, "More"));
  }

  await more();
  fill(main, h("div", { class: "page-head" }, h("h1", {}, title), h("div", { class: "end" }, actions)), head, list, pager);
}

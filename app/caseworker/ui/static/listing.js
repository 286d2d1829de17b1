// A page that is one list, with more of it on demand.

import { announce, fill, h, table } from "./dom.js";

/** Shows a list; `load` returns `{items, next}` of a page, `row` the cells of an item. */
export async function listing(main, { title, columns, load, row, empty, head, actions }) {
  const items = [];
  const list = h("section", { class: "card list" });
  const pager = h("div", { class: "pager" });

  async function more(cursor) {
    const page = await load(cursor);
    items.push(...page.items);
    fill(list, items.length ? table(title, columns, items.map(row)) : empty);
    fill(pager, page.next && h("button", { type: "button", on: { click: async (event) => {
      event.target.disabled = true;
      await more(page.next);
      announce(`${items.length} are shown.`);
    } } }, "More"));
  }

  await more();
  fill(main, h("div", { class: "page-head" }, h("h1", {}, title), h("div", { class: "end" }, actions)), head, list, pager);
}

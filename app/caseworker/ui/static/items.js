// What became of the items of a map, as its step reports it.

import { h, table } from "./dom.js";
import { count, counted } from "./format.js";
import { words } from "./status.js";

/** "1 of 3 items completed, 1 failed, 1 not started"; null if a step reports no items. */
export function itemsInWords(items) {
  if (!Array.isArray(items?.failed)) return null;
  const rest = ["not_started", "skipped", "halted", "cancelled"].map((name) => [name, items[name]]);
  const others = [["failed", items.failed.length], ...rest].filter(([, number]) => number);
  return [`${count(items.completed)} of ${counted(items.total, "item")} completed`, ...others.map(([name, number]) => `${count(number)} ${words(name)}`)].join(", ");
}

/** The items in words, and a table of those that failed. */
export function itemsOf(items) {
  const said = itemsInWords(items);
  const rows = items?.failed?.map(({ index, error }) => [count(index), error]);
  return said && [h("p", {}, said), rows.length > 0 && table("Failed items", [["Item", "number"], ["Error", ""]], rows)];
}

// The models that runs may call, by the names that agents use.

import { get } from "./api.js";
import { card, fill, h, nothing, table } from "./dom.js";
import { count } from "./format.js";

const COLUMNS = [["Name", ""], ["Model", ""], ["Provider", ""], ["Capabilities", "minor"], ["Output tokens", "number wide"], ["Fallbacks", "cut"]];

export async function show({ main, signal }) {
  const { models } = await get("/models", {}, signal);
  const rows = Object.entries(models).map(([name, one]) => [
    name, one.model, one.provider, one.capabilities.join(", ") || "text", count(one.max_output_tokens),
    one.fallbacks.map((each) => each.model).join(", ") || "–",
  ]);
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Models")),
    card("Configured models", rows.length
      ? table("Configured models", COLUMNS, rows)
      : nothing("No model is configured.", "models.small or models.named configures one.")));
}

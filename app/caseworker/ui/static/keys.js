// The API keys of the service, without their secrets.

import { ApiError, get } from "./api.js";
import { card, fill, h, nothing, since, table } from "./dom.js";

const COLUMNS = [["ID", "mono"], ["Name", "cut"], ["Tenant", ""], ["Scopes", "minor"], ["Created", "minor"], ["State", ""]];

export async function show({ main, signal }) {
  const place = h("div", {});
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "API keys")), place);
  try {
    const { keys } = await get("/keys", {}, signal);
    fill(place, card("Keys", keys.length
      ? table("API keys", COLUMNS, keys.map((one) => [one.key_id, one.name, one.tenant, one.scopes.join(", "), since(one.created_at), state(one)]))
      : nothing("No keys.", "Requests from this machine need none. `caseworker keys create` makes the first one.")));
  } catch (error) {
    if (!(error instanceof ApiError) || error.status === 401) throw error;
    fill(place, nothing("The keys cannot be shown.", error.message));
  }
}

function state(one) {
  if (one.revoked_at) return h("span", {}, "revoked ", since(one.revoked_at));
  if (!one.expires_at) return "works";
  const over = Date.parse(one.expires_at) <= Date.now();
  return h("span", {}, over ? "expired " : "works until ", h("time", {}, one.expires_at));
}

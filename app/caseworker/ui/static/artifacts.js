// The files of a run: pictures are shown, everything else can be saved.

import { file } from "./api.js";
import { fill, h, nothing } from "./dom.js";
import { count } from "./format.js";

const SHOWN = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
const MAX_BYTES = 20_000_000;

/** Shows files; bytes are asked for with the key of whoever looks, and kept in memory. */
export function pictures(place, files, signal) {
  const now = files.map((one) => one.sha256).join();
  if (place.dataset.shown === now && place.childNodes.length) return;
  place.dataset.shown = now;
  fill(place, files.length ? h("div", { class: "pictures" }, files.map((one) => figure(one, signal))) : nothing("This run has no artifacts."));
}

function figure(one, signal) {
  const path = one.url.slice(one.url.indexOf("/runs/"));
  const picture = SHOWN.has(one.media_type) && one.size_bytes <= MAX_BYTES ? h("img", { alt: one.name, loading: "lazy" }) : null;
  if (picture) {
    file(path, signal)
      .then((blob) => kept(new Blob([blob], { type: one.media_type }), signal))
      .then((address) => { picture.src = address; })
      .catch((error) => { if (!signal.aborted) picture.replaceWith(h("p", { class: "problem" }, error.message)); });
  }
  const save = h("button", { type: "button", class: "link", on: { click: async () => {
    const blob = await file(path, signal);
    const address = kept(new Blob([blob], { type: "application/octet-stream" }), signal);
    h("a", { href: address, download: one.name }).click();
  } } }, "Save");
  return h("figure", {}, picture,
    h("figcaption", {}, h("strong", {}, one.name), h("span", { class: "muted" }, `${one.media_type}, ${count(one.size_bytes)} bytes`), save));
}

function kept(blob, signal) {
  const address = URL.createObjectURL(blob);
  signal.addEventListener("abort", () => URL.revokeObjectURL(address), { once: true });
  return address;
}

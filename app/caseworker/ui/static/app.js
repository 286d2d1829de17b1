// The frame around all pages: navigation, theme, sign-in, and which page an address shows.

import { ApiError, get, root, session } from "./api.js";
import { add, fill, h, nothing, s } from "./dom.js";
import { ago } from "./format.js";

const ROUTES = [
  [/^\/ui(?:\/runs)?\/?$/, "Runs", () => import("./runs.js")],
  [/^\/ui\/overview$/, "Overview", () => import("./statistics.js")],
  [/^\/(?:ui\/)?runs\/([^/]+)(?:\/trace)?$/, "Runs", () => import("./run.js")],
  [/^\/ui\/threads$/, "Chats", () => import("./threads.js")],
  [/^\/ui\/threads\/([^/]+)$/, "Chats", () => import("./thread.js")],
  [/^\/ui\/(agents|graphs)$/, null, () => import("./definitions.js")],
  [/^\/ui\/(agents|graphs)\/([^/]+)$/, null, () => import("./definition.js")],
  [/^\/ui\/(tools|models|keys)$/, null, () => import("./catalog.js")],
  [/^\/ui\/keys\/([^/]+)$/, "Keys", () => import("./key.js")],
  [/^\/ui\/schedules$/, "Schedules", () => import("./schedules.js")],
  [/^\/ui\/quotas$/, "Quotas", () => import("./quotas.js")],
  [/^\/ui\/evaluations$/, "Evaluations", () => import("./evaluations.js")],
];

const NAVIGATION = [
  ["Runs", "/ui"],
  ["Overview", "/ui/overview"],
  ["Chats", "/ui/threads"],
  ["Agents", "/ui/agents"],
  ["Graphs", "/ui/graphs"],
  ["Tools", "/ui/tools"],
  ["Models", "/ui/models"],
  ["Schedules", "/ui/schedules"],
  ["Keys", "/ui/keys"],
  ["Quotas", "/ui/quotas"],
  ["Evaluations", "/ui/evaluations"],
];

const INVALID = "This key is not valid.";
const THEMES = { auto: "System theme", light: "Light theme", dark: "Dark theme" };
const THEME_SIGNS = {
  auto: "M8 2a6 6 0 1 0 0 12zM8 2a6 6 0 0 1 0 12",
  light: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6M8 1v1.6M8 13.4V15M1 8h1.6M13.4 8H15M3 3l1.1 1.1M11.9 11.9L13 13M13 3l-1.1 1.1M4.1 11.9L3 13",
  dark: "M13.2 9.8A5.8 5.8 0 0 1 6.2 2.8a5.8 5.8 0 1 0 7 7z",
};

const main = h("main", { id: "main", tabindex: "-1" });
const links = new Map(NAVIGATION.map(([title, path]) => [title, h("a", { href: root + path }, title)]));
const menuTitle = h("span", {});
const menu = h("button", { type: "button", class: "quiet menu-button", "aria-expanded": "false", "aria-controls": "pages", on: { click: () => openMenu(menu.getAttribute("aria-expanded") === "false") } },
  s("svg", { viewBox: "0 0 16 16", class: "glyph", "aria-hidden": "true" }, s("path", { d: "M2 4h12M2 8h12M2 12h12" })), menuTitle);
const account = h("button", { type: "button", class: "quiet", on: { click: () => { leaving.abort(); session.signOut(); askForKey(); } } }, "Sign out");
let leaving = new AbortController();

function frame() {
  const theme = h("button", { type: "button", class: "quiet icon" });
  const show = (name) => {
    document.documentElement.dataset.theme = name;
    theme.dataset.theme = name;
    theme.setAttribute("aria-label", `${THEMES[name]}; change`);
    theme.title = THEMES[name];
    fill(theme, s("svg", { viewBox: "0 0 16 16", class: "glyph", "aria-hidden": "true" }, s("path", { d: THEME_SIGNS[name] })));
    document.dispatchEvent(new Event("theme-changed"));
  };
  theme.addEventListener("click", () => {
    const names = Object.keys(THEMES);
    const next = names[(names.indexOf(theme.dataset.theme) + 1) % names.length];
    localStorage.setItem("caseworker.theme", next);
    show(next);
  });
  const kept = localStorage.getItem("caseworker.theme");
  show(kept in THEMES ? kept : "auto");
  add(document.body, [
    h("a", { class: "skip", href: "#main" }, "Skip to content"),
    h("header", { class: "top" },
      h("a", { class: "brand", href: `${root}/ui`, "aria-label": "Caseworker" },
        s("svg", { viewBox: "0 0 32 32", "aria-hidden": "true" },
          s("rect", { width: 32, height: 32, rx: 7 }),
          s("path", { d: "M8 9h16M8 16h9M12 23h12" })),
        h("span", {}, "Caseworker")),
      menu,
      h("nav", { "aria-label": "Pages", id: "pages" }, [...links.values()]),
      h("div", { class: "top-end" }, theme, account)),
    main,
    h("div", { id: "announcer", class: "unseen", role: "status", "aria-live": "polite" }),
  ]);
}

/** Opens or closes the menu of pages; wide screens show the pages without it. */
function openMenu(open) {
  menu.setAttribute("aria-expanded", String(open));
}

/** Goes to an address of the viewer without loading the page anew. */
export function go(path, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", path);
  show();
}

async function show({ keepFocus = false } = {}) {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const path = location.pathname.slice(root.length);
  const [pattern, title, load] = ROUTES.find(([one]) => one.test(path)) ?? [];
  const params = pattern?.exec(path).slice(1).map(decodeURIComponent) ?? [];
  const section = title ?? params[0]?.replace(/^./, (letter) => letter.toUpperCase());
  for (const [name, link] of links) {
    if (pattern && name === section) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const name = pattern ? section : "Pages";
  fill(menuTitle, name);
  menu.setAttribute("aria-label", `Menu: ${name}`);
  openMenu(false);
  account.hidden = !session.key;
  document.title = `${name} · Caseworker`;
  main.className = "";
  fill(main, h("p", { class: "loading" }, "Loading…"));
  if (!pattern) {
    fill(main, h("div", { class: "nothing" }, h("h1", {}, "Page not found"), h("a", { href: `${root}/ui` }, "Show the runs")));
    return;
  }
  try {
    const page = await load();
    if (!signal.aborted) await page.show({ main, params, signal, go, query: new URLSearchParams(location.search) });
  } catch (error) {
    if (!signal.aborted) showFailure(error);
  }
  if (!signal.aborted && !keepFocus && !main.contains(document.activeElement)) main.focus({ preventScroll: true });
}

function showFailure(error) {
  if (main.querySelector("form.sign-in")) return;
  const known = error instanceof ApiError;
  if (!known) console.warn("The page could not be shown:", error.message);
  fill(main, nothing(
    known && error.status === 404 ? "Not found." : "The page could not be loaded.",
    error.message,
    h("p", {}, h("button", { type: "button", on: { click: () => show() } }, "Try again")),
  ));
}

function askForKey() {
  if (main.querySelector("form.sign-in")) return; // a user may be typing a key
  const field = h("input", { id: "key", type: "password", autocomplete: "off", required: true, spellcheck: "false", placeholder: "cwk_…" });
  const message = h("p", { class: "problem", role: "alert" }, session.key && INVALID);
  const form = h("form", { class: "sign-in card", on: { submit } },
    h("h1", {}, "Sign in"),
    h("p", { class: "muted" }, "Enter an API key to view runs. The key is stored only in this tab and deleted when you close it."),
    h("label", { for: "key" }, "API key"), field, message,
    h("button", { class: "primary" }, "Sign in"));
  session.signOut();
  account.hidden = true;
  main.className = "";
  fill(main, form);
  field.focus();

  async function submit(event) {
    event.preventDefault();
    session.signIn(field.value.trim());
    try {
      await get("/runs", { limit: 1 });
      show();
    } catch (error) {
      session.signOut();
      if (main.contains(form)) fill(message, error.status === 401 ? INVALID : error.message);
    }
  }
}

document.addEventListener("sign-in-needed", () => {
  leaving.abort();
  askForKey();
});

document.addEventListener("click", (event) => {
  if (!event.target.closest?.("header.top")) openMenu(false);
  for (const open of document.querySelectorAll("details.menu[open]")) open.open = open.contains(event.target);
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const to = new URL(link.href);
  if (to.origin !== location.origin || link.hasAttribute("download") || link.target || link.getAttribute("href").startsWith("#")) return;
  if (!to.pathname.startsWith(`${root}/ui`)) return;
  event.preventDefault();
  go(to.pathname + to.search);
  scrollTo(0, 0);
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  const open = event.target.closest?.("details.menu[open]");
  if (menu.getAttribute("aria-expanded") === "true") menu.focus();
  open?.removeAttribute("open");
  open?.firstChild.focus();
  openMenu(false);
});

// Every time element shows how long ago it is; its title has the absolute time.
setInterval(() => {
  for (const one of document.querySelectorAll("time[datetime]")) {
    const text = ago(one.dateTime);
    if (one.textContent !== text) one.textContent = text;
  }
}, 5000);

addEventListener("popstate", () => show());
frame();
show({ keepFocus: true });

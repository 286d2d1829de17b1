// Delayed and repeated runs: their times, and the ways to start, pause and resume them.

import { refusal, root, runPath } from "./api.js";
import { announce, fill, h, nothing, since } from "./dom.js";
import { definitionField, dialog, field, reference, requestForm, sender } from "./forms.js";
import { count } from "./format.js";
import { listing } from "./listing.js";

const COLUMNS = [["Name", ""], ["State", "minor"], ["Actions", ""], ["When", ""], ["Last run", "wide"], ["What", "wide"], ["Overlap", "wide"], ["Skipped", "number wide"]];
const OVERLAP = { skip: "Skip the run", allow: "Run both", cancel_running: "Cancel the earlier run" };

export async function show({ main, signal, go }) {
  const refused = await refusal("run");
  const message = h("p", { class: "problem", role: "alert" });
  const reload = () => go(`${root}/ui/schedules`, { replace: true });
  let busy = false;
  const act = async (submit, path, done) => {
    if (busy) return;
    busy = true;
    fill(message);
    try {
      await done(await submit(path));
    } catch (error) {
      fill(message, error.message);
    }
    busy = false;
  };

  function row(first) {
    const state = h("div", { class: "row" });
    const submit = sender();
    const toggle = h("button", { type: "button", disabled: refused, on: { click: () =>
      act(submit, `${path}/${toggle.dataset.action}`, (one) => {
        draw(one);
        announce(`${one.name} is ${one.paused ? "paused" : "active"}.`);
      }) } });
    const path = `/schedules/${encodeURIComponent(first.name)}`;
    const run = h("button", { type: "button", disabled: refused, on: { click: () =>
      act(submit, `${path}/run`, ({ run_id: id }) => go(`${root}/ui${runPath(id)}`)) } }, "Run now");
    const remove = h("button", { type: "button", class: "danger", disabled: refused, on: { click: () => dialog("Delete", (close) => requestForm({
      method: "DELETE", title: `Delete the schedule ${first.name}?`, action: "Delete", danger: true, close, done: reload, request: () => [path],
    }, h("p", {}, "Its runs are not affected."))) } }, "Delete…");
    const draw = (one) => {
      fill(state, one.last_error ? h("span", { class: "tag tag-bad", title: one.last_error }, "failing") :
        one.paused ? h("span", { class: "tag tag-warn" }, "paused") : h("span", { class: "tag tag-ok" }, "active"),
      one.next_at && since(one.next_at));
      toggle.dataset.action = one.paused ? "resume" : "pause";
      fill(toggle, one.paused ? "Resume" : "Pause", h("span", { class: "unseen" }, ` ${one.name}`));
    };
    draw(first);
    return [
      h("strong", {}, first.name),
      state,
      h("div", { class: "row" }, run, toggle, remove, h("a", { href: `${root}/ui?q=schedule%3D${encodeURIComponent(first.name)}` }, "Its runs")),
      [h("code", {}, first.cron), " ", h("small", { class: "muted" }, first.timezone)],
      first.last_run_id ? h("a", { class: "row-link", href: `${root}/ui${runPath(first.last_run_id)}` }, first.last_run_id) : "–",
      `${first.run.kind ?? "case"} ${first.run.agent?.name ?? first.run.graph?.name ?? ""}`,
      first.overlap,
      count(first.skipped),
    ];
  }

  await listing(main, "schedules", {
    title: "Schedules",
    columns: COLUMNS,
    signal,
    row,
    head: message,
    empty: nothing("No schedules.", "A schedule starts a run at the times of a cron expression."),
    actions: [
      refused && h("span", { class: "muted" }, refused),
      h("button", { type: "button", class: "primary", disabled: refused, on: { click: () => newSchedule(reload) } }, "New schedule…"),
    ],
  });
}

async function newSchedule(done) {
  const [select, what] = await definitionField("What to run", "A case (a question with a checked answer)");
  const name = h("input", { name: "name", autocomplete: "off", pattern: "[A-Za-z0-9._\\-]{1,64}" });
  const cron = h("input", { name: "cron", value: "0 6 * * *", autocomplete: "off", class: "mono" });
  const timezone = h("input", { name: "timezone", value: Intl.DateTimeFormat().resolvedOptions().timeZone, autocomplete: "off" });
  const input = h("textarea", { name: "run.input", class: "prose" });
  const overlap = h("select", { name: "overlap" }, Object.entries(OVERLAP).map(([value, label]) => h("option", { value }, label)));
  dialog("New schedule", (close) => requestForm({
    method: "PUT",
    title: "New schedule",
    action: "Save",
    close,
    done,
    request: () => {
      if (!name.value || !name.validity.valid) throw Object.assign(new Error(), { errors: [{ field: "name", message: "Use 1 to 64 letters, digits, dots, hyphens and underscores." }] });
      const kind = select.value ? { kind: select.value.split("/")[0].slice(0, -1), ...reference(select.value) } : {};
      return [`/schedules/${encodeURIComponent(name.value)}`, {
        cron: cron.value, timezone: timezone.value, overlap: overlap.value, run: { ...kind, input: input.value || undefined },
      }];
    },
  },
  field("Name", name, "An existing schedule of this name is replaced."),
  field("When", cron, "Minute, hour, day of the month, month, day of the week."),
  field("Time zone", timezone), what, field("Input", input),
  field("If the earlier run has not ended", overlap)));
}

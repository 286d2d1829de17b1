// Numbers, money, times: as people read them.

const COUNT = new Intl.NumberFormat("en-US");
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const DAY = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric" });

/** 12345 -> "12,345"; null -> "–". */
export function count(number) {
  return number === null || number === undefined ? "–" : COUNT.format(number);
}

/** "1 call", "2 calls". */
export function counted(number, word, words = `${word}s`) {
  return `${count(number)} ${number === 1 ? word : words}`;
}

/** US dollars with as many digits as small amounts need. */
export function money(usd) {
  if (usd === null || usd === undefined) return "unknown";
  if (usd === 0) return "$0";
  if (usd < 0.01) return `$${usd.toFixed(Math.min(10, 1 - Math.floor(Math.log10(usd))))}`;
  return `$${usd.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: usd < 1 ? 4 : 2 })}`;
}

/** Milliseconds as "8 ms", "1.24 s", "3 min 05 s", "2 h 07 min". */
export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 9_995 ? 2 : 1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 3600 && seconds % 60 === 0) return `${seconds / 60} min`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${pad(seconds % 60)} s`;
  if (seconds % 3600 === 0 && seconds < 86_400) return `${seconds / 3600} h`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ${pad(Math.floor((seconds % 3600) / 60))} min`;
  return `${Math.floor(seconds / 86_400)} d ${Math.floor((seconds % 86_400) / 3600)} h`;
}

/** How long between two instants, each as text; until now if the second is null. */
export function between(from, to) {
  return from ? (to ? Date.parse(to) : Date.now()) - Date.parse(from) : null;
}

/** An instant as text -> local day and time. */
export function instant(text) {
  if (!text) return "–";
  const when = new Date(text);
  const today = new Date().toDateString() === when.toDateString();
  return today ? CLOCK.format(when) : `${DAY.format(when)}, ${CLOCK.format(when)}`;
}

const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1000]];

/** An instant as text -> "12 min ago". */
export function ago(text) {
  const ms = Date.now() - Date.parse(text);
  const [unit, size] = UNITS.find(([, one]) => Math.abs(ms) >= one) ?? [];
  if (!unit) return "now";
  const words = `${Math.floor(Math.abs(ms) / size)} ${unit}`;
  return ms < 0 ? `in ${words}` : `${words} ago`;
}

/** What a limit is called, and in which unit it is counted. */
export const LIMITS = {
  max_tokens: ["Tokens", "tokens"],
  max_seconds: ["Time", "seconds"],
  max_steps: ["Steps", "steps"],
  max_api_calls: ["API calls", "api_calls"],
  max_cost_usd: ["Cost", "cost_usd"],
  max_llm_calls: ["Model calls", "llm_calls"],
  max_llm_calls_small: ["Small model calls", "llm_calls_small"],
  max_llm_calls_big: ["Big model calls", "llm_calls_big"],
  max_tool_calls: ["Tool calls", "tool_calls"],
  max_turns: ["Turns", "turns"],
};

/** An amount of one dimension of a budget. */
export function amount(dimension, value) {
  if (dimension === "cost_usd") return money(value);
  if (dimension === "seconds") return value === null || value === undefined ? "–" : duration(value * 1000);
  return count(value);
}

function pad(number) {
  return String(number).padStart(2, "0");
}

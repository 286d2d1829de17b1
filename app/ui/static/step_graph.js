// The graph of steps as a picture: columns are the layers that the service has found.

import { h, s } from "./dom.js";
import { duration } from "./format.js";
import { words } from "./status.js";

const WIDTH = 176;
const GAP_X = 64;
const EDGE = 16;
const SWEEPS = 4;

/** Draws a graph; `states` says how steps stand, by id, and `chosen` is called with a CallNode's id. */
export function stepGraph(graph, states, chosen) {
  const layers = ordered(graph);
  const most = Math.max(...layers.map((layer) => layer.length));
  const height = most > 24 ? 30 : 46;
  const gap = most > 24 ? 6 : 18;
  const types = new Map(graph.steps.map((step) => [step.id, step.type]));
  const places = new Map();
  const tall = most * (height + gap) - gap;
  layers.forEach((layer, column) => {
    const top = EDGE + (tall - (layer.length * (height + gap) - gap)) / 2;
    layer.forEach((id, at) => places.set(id, { x: EDGE + column * (WIDTH + GAP_X), y: top + at * (height + gap) }));
  });
  const width = layers.length * (WIDTH + GAP_X) - GAP_X + 2 * EDGE;
  const edges = graph.edges.filter((edge) => places.has(edge.source) && places.has(edge.target));
  const picture = s("svg", { class: "step-graph", width, height: tall + 2 * EDGE, viewBox: `0 0 ${width} ${tall + 2 * EDGE}`, role: "group", "aria-label": "Steps of the graph" },
    s("defs", {}, s("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
      s("path", { class: "arrow", d: "M0 0L8 4L0 8z" }))),
    edges.map((edge) => line(edge, places, states, height)),
    layers.flat().map((id) => box(id, types.get(id), places.get(id), height, states.get(id), chosen)));
  return h("div", { class: "graph-scroll", tabindex: "0", role: "region", "aria-label": "Step graph" }, picture);
}

/** Puts the steps of each layer in an order in which few edges cross. */
function ordered(graph) {
  const drawn = new Set(graph.layers.flat());
  const rest = graph.steps.map((step) => step.id).filter((id) => !drawn.has(id));
  const layers = [...graph.layers.map((layer) => [...layer]), ...(rest.length ? [rest] : [])];
  const neighbours = new Map();
  for (const { source, target } of graph.edges) {
    (neighbours.get(source) ?? neighbours.set(source, []).get(source)).push(target);
    (neighbours.get(target) ?? neighbours.set(target, []).get(target)).push(source);
  }
  const place = new Map();
  const number = (layer) => layer.forEach((id, at) => place.set(id, at - layer.length / 2));
  layers.forEach(number);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    for (const layer of sweep % 2 ? [...layers].reverse() : layers) {
      const weight = new Map(layer.map((id) => {
        const near = (neighbours.get(id) ?? []).filter((other) => !layer.includes(other));
        return [id, near.length ? near.reduce((sum, other) => sum + place.get(other), 0) / near.length : place.get(id)];
      }));
      layer.sort((a, b) => weight.get(a) - weight.get(b));
      number(layer);
    }
  }
  return layers;
}

function line(edge, places, states, height) {
  const from = places.get(edge.source);
  const to = places.get(edge.target);
  const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + height / 2, to.x - 2, to.y + height / 2];
  const bend = Math.max(28, Math.abs(x2 - x1) / 2);
  const channel = edge.channel ?? edge.data?.channel;
  const dead = states.get(edge.target)?.status === "skipped" || states.get(edge.source)?.status === "skipped";
  return s("path", {
    class: `edge edge-${channel}${dead ? " edge-dead" : ""}`, "marker-end": "url(#arrow)",
    d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`,
  }, s("title", {}, `${edge.source} → ${edge.target}, ${channel}`));
}

function box(id, type, { x, y }, height, state, chosen) {
  const status = state?.status ?? (state === undefined ? null : "not_started");
  const note = [status && words(status), state?.ms !== undefined && duration(state.ms), state?.retries ? `${state.retries}× retried` : null].filter(Boolean).join(" · ");
  const open = state?.nodeId ? () => chosen(state.nodeId) : null;
  const small = height < 40;
  return s("g",
    {
      class: `step-box is-${status ?? "plain"}`, transform: `translate(${x} ${y})`,
      ...(open ? { role: "button", tabindex: "0", on: { click: open, keydown: (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), open()) } } : { role: "img" }),
      "aria-label": `${id}, ${type}${note ? `, ${note}` : ""}`,
    },
    s("rect", { class: "frame", width: WIDTH, height, rx: 7 }),
    s("rect", { class: "edge-mark", width: 5, height: height - 12, x: 6, y: 6, rx: 2.5 }),
    s("text", { x: 19, y: small ? 19 : 19 }, cut(id, 20)),
    small ? null : s("text", { class: "minor", x: 19, y: 36 }, cut(note || type, 25)),
    s("title", {}, `${id} (${type}) ${note}`));
}

function cut(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

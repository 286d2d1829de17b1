// The graph of steps as a picture: columns are the layers that the service has found.

import { h, s } from "./dom.js";
import { counted, duration } from "./format.js";
import { itemsInWords } from "./items.js";
import { words } from "./status.js";

const WIDTH = 176;
const GAP_X = 64;
const GAP_Y = 16;
const MANY = 24;
const BLOCK = 10;
const EDGE = 16;
const SWEEPS = 4;

/** Draws a graph; `states` says how steps stand, by id, and `chosen` is called with a CallNode's id. */
export function stepGraph(graph, states, chosen) {
  const { layers, ways } = ordered(graph);
  const height = 46;
  const types = new Map(graph.steps.map((step) => [step.id, step.type]));
  const rows = (layer) => Math.min(layer.length, layer.length > MANY ? BLOCK : layer.length);
  const most = Math.max(...layers.map(rows));
  const tall = most * (height + GAP_Y) - GAP_Y;
  const places = new Map();
  let left = EDGE;
  for (const layer of layers) {
    const high = rows(layer);
    const columns = Math.ceil(layer.length / high);
    const top = EDGE + (tall - (high * (height + GAP_Y) - GAP_Y)) / 2;
    const right = left + columns * (WIDTH + GAP_Y) - GAP_Y;
    // The edges of a layer that is a block of columns meet at its sides.
    const middle = columns > 1 ? EDGE + tall / 2 : null;
    layer.forEach((id, at) => {
      const x = left + Math.floor(at / high) * (WIDTH + GAP_Y);
      const y = top + (at % high) * (height + GAP_Y);
      places.set(id, { x, y, passed: typeof id === "symbol", from: [right, middle ?? y + height / 2], to: [left, middle ?? y + height / 2] });
    });
    left = right + GAP_X;
  }
  const width = left - GAP_X + EDGE;
  const edges = graph.edges.filter((edge) => places.has(edge.source) && places.has(edge.target));
  const picture = s("svg", { class: "step-graph", width, height: tall + 2 * EDGE, viewBox: `0 0 ${width} ${tall + 2 * EDGE}`, role: "group", "aria-label": "Steps of the graph" },
    s("defs", {}, s("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
      s("path", { class: "arrow", d: "M0 0L8 4L0 8z" }))),
    lines(edges, places, states, ways),
    layers.flat().filter((id) => types.has(id)).map((id) => box(id, types.get(id), places.get(id), height, states.get(id), chosen)));
  return h("div", { class: "graph-scroll", tabindex: "0", role: "region", "aria-label": "Step graph" }, picture);
}

/**
 * Puts the steps of each layer in an order in which few edges cross. An edge that leaves out layers
 * is given a place in each of them, so that it passes between the steps there and behind none.
 */
function ordered(graph) {
  const drawn = new Set(graph.layers.flat());
  const rest = graph.steps.map((step) => step.id).filter((id) => !drawn.has(id));
  const layers = [...graph.layers.map((layer) => [...layer]), ...(rest.length ? [rest] : [])];
  const at = new Map(layers.flatMap((layer, number) => layer.map((id) => [id, number])));
  const ways = new Map();
  const neighbours = new Map();
  for (const edge of graph.edges) {
    const way = [edge.source];
    for (let number = at.get(edge.source) + 1; number < at.get(edge.target); number += 1) {
      if (layers[number].length >= MANY) continue;
      const place = Symbol();
      layers[number].push(place);
      way.push(place);
    }
    way.push(edge.target);
    ways.set(edge, way);
    for (let step = 1; step < way.length; step += 1) {
      const [source, target] = [way[step - 1], way[step]];
      (neighbours.get(source) ?? neighbours.set(source, []).get(source)).push(target);
      (neighbours.get(target) ?? neighbours.set(target, []).get(target)).push(source);
    }
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
  return { layers, ways };
}

/** Draws edges; those that would lie on one another are one line. */
function lines(edges, places, states, ways) {
  const drawn = new Map();
  for (const edge of edges) {
    const points = ways.get(edge).map((id) => places.get(id));
    const channel = edge.channel ?? edge.data?.channel;
    const skipped = (id) => states.get(id)?.status === "skipped";
    const dead = skipped(edge.source) || skipped(edge.target);
    const way = `M${points[0].from.join(" ")}${points.slice(1).map((point, at) => curve(points[at].from, point)).join("")}`;
    const attributes = { class: `edge edge-${channel}${dead ? " edge-dead" : ""}`, "marker-end": "url(#arrow)", d: way };
    if (!drawn.has(way)) drawn.set(way, s("path", attributes, s("title", {}, `${edge.source} → ${edge.target}, ${channel}`)));
  }
  return [...drawn.values()];
}

/** Goes on from a point to a step, or through the layer that it is led through. */
function curve([x1, y1], { from, to: [x2, y2], passed }) {
  const end = passed ? x2 : x2 - 2;
  const bend = Math.max(28, Math.abs(end - x1) / 2);
  return `C${x1 + bend} ${y1} ${end - bend} ${y2} ${end} ${y2}${passed ? `H${from[0]}` : ""}`;
}

function box(id, type, { x, y }, height, state, chosen) {
  const status = state?.status ?? (state === undefined ? null : "not_started");
  const note = [status && words(status), type === "map" && itemsInWords(state?.items), state?.ms !== undefined && duration(state.ms), state?.retries ? counted(state.retries, "retry", "retries") : null].filter(Boolean).join(" · ");
  const open = state?.nodeId ? () => chosen(state.nodeId) : null;
  return s("g",
    {
      class: `step-box is-${status ?? "plain"}`, transform: `translate(${x} ${y})`,
      ...(open ? { role: "button", tabindex: "0", on: { click: open, keydown: (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), open()) } } : { role: "img" }),
      "aria-label": `${id}, ${type}${note ? `, ${note}` : ""}`,
    },
    s("rect", { class: "frame", width: WIDTH, height, rx: 7 }),
    s("rect", { class: "edge-mark", width: 5, height: height - 12, x: 6, y: 6, rx: 2.5 }),
    s("text", { x: 19, y: 19 }, cut(id, 20)),
    s("text", { class: "minor", x: 19, y: 36 }, cut(note || type, 25)),
    s("title", {}, `${id} (${type}) ${note}`));
}

function cut(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

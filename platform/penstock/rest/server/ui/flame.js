// A flame graph of one vertex from stack samples: callers above, widest first. Arrow keys navigate.

import { get } from "./api.js";
import { h } from "./dom.js";
import { clock, percent } from "./format.js";
import { note } from "./parts.js";

const KINDS = { full: "All time", on_cpu: "On CPU", off_cpu: "Waiting" };
const WHOSE = { user: "your code", library: "libraries", engine: "penstock" };
const ROW = 21;
// Narrower parts of the graph are not drawn.
const LEAST = 0.002;
const MOST_LINES = 5;
const WAITING = -3;

export function load({ id, vertex, ui }, signal) {
  const subtask = ui.flame.subtask === "" ? "" : `&subtaskindex=${ui.flame.subtask}`;
  return get(`/jobs/${id}/vertices/${vertex}/flamegraph?type=${ui.flame.kind}${subtask}`, signal);
}

export const closed = () => ({ open: false, kind: "full", subtask: "", zoom: [], search: "", at: [] });

export function view({ graph, parallelism, ui, update, reload }) {
  const state = ui.flame;
  const change = (what) => {
    Object.assign(state, what);
    update();
    reload();
  };
  return h("section", { class: "flame", key: "flame", "aria-label": "Flame graph" },
    h("div", { class: "flame-tools" },
      h("span", { role: "group", "aria-label": "Which time" }, Object.entries(KINDS).map(([kind, name]) =>
        h("button", { type: "button", class: "pick", "aria-pressed": String(state.kind === kind), onclick: () => change({ kind, zoom: [], at: [] }) }, name))),
      parallelism > 1 ? h("label", {}, "Subtask ", h("select", { onchange: (event) => change({ subtask: event.target.value, zoom: [], at: [] }) },
        h("option", { value: "", selected: state.subtask === "" }, "all"),
        Array.from({ length: parallelism }, (_, i) => h("option", { value: i, selected: state.subtask === String(i) }, i)))) : null,
      h("label", {}, "Search ", h("input", { type: "search", value: state.search, oninput: (event) => { state.search = event.target.value; update(); } })),
      state.zoom.length ? h("button", { type: "button", onclick: () => { state.zoom = state.at = []; update(); } }, "Show all") : null,
      h("span", { class: "legend" }, Object.entries(WHOSE).map(([whose, name]) => h("i", { class: whose }, name)))),
    drawn(graph, state, update));
}

function drawn(graph, state, update) {
  if (!graph) return note("Loading ...");
  if (!graph.data) {
    return note(graph.error ?? (graph.endTimestamp === WAITING ? "Taking samples for five seconds ..." : "The subtasks have ended: no samples can be taken."));
  }
  const all = graph.data;
  if (!all.value) return note("No samples of this kind: choose all time.");
  const top = walked(all, state.zoom);
  return [
    note(`${all.value} samples until ${clock(graph.endTimestamp)}${graph.sampling ? ", taking new ones" : ""}; sampling used ${(graph.cost * 100).toFixed(1)} % of a CPU. Compiled code appears as the line that called it.`),
    ownLines(all),
    found(all, state.search),
    h("div", { class: "flame-graph", role: "tree", "aria-label": "Calls, callers above", style: { height: `${(depth(top) + 1) * ROW}px` },
      onkeydown: (event) => key(event, all, state, update) },
    boxes(all, top, state, update)),
  ];
}

// The node at the end of a path of names, as far as it exists.
function walked(root, path) {
  let node = root;
  for (const name of path) node = node.children.find((child) => child.name === name) ?? node;
  return node;
}

const depth = (node) => 1 + Math.max(0, ...node.children.map(depth));

function boxes(all, top, state, update) {
  const list = [];
  const wanted = state.search.toLowerCase();
  const add = (node, path, left, width, level) => {
    const hit = wanted && node.name.toLowerCase().includes(wanted);
    const share = node.value / all.value;
    const text = `${node.name}: ${percent(share)}, ${node.value} samples, ${WHOSE[node.whose]}`;
    const here = same(path, state.at) || (path.length === state.zoom.length && !within(state.zoom, state.at));
    list.push(h("button", {
      type: "button", key: path.join("\u0000"), class: `call ${node.whose}${hit ? " hit" : ""}`, role: "treeitem", "aria-label": text, title: text,
      "aria-level": path.length + 1, "aria-selected": String(here), tabindex: here ? 0 : -1, "data-path": JSON.stringify(path),
      style: { left: `${left * 100}%`, width: `${width * 100}%`, top: `${level * ROW}px` },
      onclick: () => { state.zoom = path; state.at = path; update(); },
    }, node.name));
    let from = left;
    for (const child of node.children) {
      const part = (child.value / node.value) * width;
      if (part >= LEAST) add(child, [...path, child.name], from, part, level + 1);
      from += part;
    }
  };
  add(top, state.zoom, 0, 1, 0);
  return list;
}

const same = (a, b) => a.length === b.length && a.every((name, i) => name === b[i]);
const within = (outer, inner) => outer.every((name, i) => name === inner[i]);

// Up and down move to the caller and the widest call, left and right to the neighbours; Enter zooms in.
function key(event, all, state, update) {
  const path = event.target.dataset?.path ? JSON.parse(event.target.dataset.path) : state.zoom;
  const above = path.slice(0, -1);
  const siblings = path.length > state.zoom.length ? walked(all, above).children.map((child) => child.name) : [];
  const place = siblings.indexOf(path.at(-1));
  const first = walked(all, path).children[0]?.name;
  const next = {
    ArrowUp: path.length > state.zoom.length ? above : null,
    ArrowDown: first === undefined ? null : [...path, first],
    ArrowLeft: place > 0 ? [...above, siblings[place - 1]] : null,
    ArrowRight: place >= 0 && place + 1 < siblings.length ? [...above, siblings[place + 1]] : null,
  }[event.key];
  if (event.key === "Escape" && state.zoom.length) {
    state.zoom = state.at = [];
  } else if (next) {
    state.at = next;
  } else {
    return;
  }
  event.preventDefault();
  const tree = event.currentTarget;
  update();
  tree.querySelector('[tabindex="0"]')?.focus();
}

// The user's own lines that took the most time: each sample counts for its innermost own line.
function ownLines(all) {
  const counts = new Map();
  const walk = (node, own) => {
    const mine = node.whose === "user" ? node.name : own;
    const below = node.children.reduce((sum, child) => sum + child.value, 0);
    if (mine && node.value > below) counts.set(mine, (counts.get(mine) ?? 0) + node.value - below);
    for (const child of node.children) walk(child, mine);
  };
  walk(all, null);
  const lines = [...counts].sort((a, b) => b[1] - a[1]).slice(0, MOST_LINES);
  if (!lines.length) return note("No sample contains your own code.");
  return h("ul", { class: "operators", "aria-label": "Your own lines" }, lines.map(([name, count]) =>
    h("li", { key: name }, h("span", { class: "uid", title: name }, name),
      h("span", { class: "meter" }, h("i", { style: { width: `${(count / all.value) * 100}%` } })),
      h("span", { class: "end" }, percent(count / all.value)))));
}

// The share of time in or below the functions that match the search.
function found(all, search) {
  if (!search) return null;
  const wanted = search.toLowerCase();
  const sum = (node) => (node.name.toLowerCase().includes(wanted) ? node.value : node.children.reduce((s, child) => s + sum(child), 0));
  return h("p", { class: "note", role: "status", key: "found" }, `Found in ${percent(sum(all) / all.value)} of the samples.`);
}

// The job graph with live metrics, and the selected vertex with its subtasks.

import { get } from "./api.js";
import { h } from "./dom.js";
import * as flame from "./flame.js";
import { behind, bytes, duration, markOf, percent, rate, short, smallPercent } from "./format.js";
import { layout } from "./layout.js";
import { chip, loadBar, loadOf, meanLoad, mood, note, spark, sumOf, table } from "./parts.js";

const SHIPPED = { HASH: "by key", FORWARD: "one to one", REBALANCE: "in turn", BROADCAST: "to all" };
const WORDS = { busy: "busy", held: "back-pressured", idle: "idle" };

export async function load({ id, ui, base }, signal) {
  const vertex = chosen(base, ui);
  ui.flame ??= flame.closed();
  const [metrics, subtasks, calls] = await Promise.all([
    get(`/penstock/jobs/${id}/metrics`, signal),
    vertex ? get(`/jobs/${id}/vertices/${vertex}`, signal) : null,
    vertex && ui.flame.open ? flame.load({ id, vertex, ui }, signal) : null,
  ]);
  return { tasks: metrics.tasks, vertex: subtasks, calls };
}

// The vertex that the user selected, else that of the first finding, else the first.
function chosen(base, ui) {
  const ids = base.job.vertices.map((vertex) => vertex.id);
  return [ui.vertex, base.health.findings[0]?.vertex].find((vertex) => ids.includes(vertex)) ?? ids[0];
}

export function view({ base, data, ui, update, reload }) {
  const { job, health } = base;
  const culprits = new Map(health.findings.filter((f) => f.vertex && f.level !== "good").map((f) => [f.vertex, f]));
  const nodes = job.plan.nodes.map((node) => ({
    id: node.id,
    inputs: (node.inputs ?? []).map((input) => ({ id: input.id, label: SHIPPED[input.ship_strategy] ?? input.ship_strategy.toLowerCase() })),
  }));
  const plan = layout(nodes);
  const shown = chosen(base, ui);
  const select = (vertex) => {
    ui.vertex = vertex;
    ui.flame = { ...flame.closed(), open: ui.flame.open, kind: ui.flame.kind };
    data.calls = null;
    update();
    reload();
  };
  return [
    h("ul", { class: "legend", "aria-label": "Colours" }, Object.entries(WORDS).map(([kind, word]) => h("li", { class: kind }, word))),
    h("div", { class: "graph", role: "region", "aria-label": "Job graph", tabindex: 0 },
      h("div", { class: "canvas", style: { width: `${plan.width + 4}px`, height: `${plan.height + 4}px` } },
        edges(plan),
        job.vertices.map((vertex) => card({ vertex, place: plan.places[vertex.id], shown, select, culprit: culprits.get(vertex.id), data, health, now: job.now })))),
    data.vertex ? details({ job, data, health, ui, update, reload }) : null,
  ];
}

function edges(plan) {
  return h("svg", { class: "edges", width: plan.width, height: plan.height, "aria-hidden": "true" },
    h("defs", {}, h("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
      h("path", { d: "M0 0L8 4L0 8z" }))),
    plan.edges.map((edge) => [
      h("path", { class: "edge", d: edge.path, "marker-end": "url(#tip)" }),
      h("text", { x: edge.at.x, y: edge.at.y - 8, "text-anchor": "middle" }, edge.label),
    ]));
}

function metricsOf(tasks, vertex) {
  return Array.from({ length: vertex.parallelism }, (_, i) => tasks[`${vertex.id}/${i}`]).filter(Boolean);
}

// The part of a vertex's rows that have its hottest key; each key belongs to one subtask.
function hottestOf(metrics) {
  const rows = sumOf(metrics, "numRecordsIn");
  return rows ? Math.max(...metrics.map((m) => ((m.hottestKeyShare ?? 0) * m.numRecordsIn) / rows)) : 0;
}

function lagOf(metrics) {
  if (metrics.some((m) => m.recordsLagUnknown)) return ", lag not known yet";
  return metrics.some((m) => m.recordsLag !== undefined) ? `, ${short(sumOf(metrics, "recordsLag"))} rows of lag` : "";
}

function card({ vertex, place, shown, select, culprit, data, health, now }) {
  const metrics = metricsOf(data.tasks, vertex);
  const loads = metrics.map(loadOf);
  const load = meanLoad(loads);
  const series = health.vertices[vertex.id];
  const kind = loads.length ? mood(load) : "idle";
  const marks = metrics.map(markOf).filter((mark) => mark !== undefined);
  const lag = lagOf(metrics);
  const hottest = hottestOf(metrics);
  return h("button", {
    type: "button", key: vertex.id, class: `card ${kind}${culprit ? ` culprit ${culprit.level}` : ""}`,
    "aria-pressed": String(vertex.id === shown), onclick: () => select(vertex.id), "data-vertex": vertex.id,
    style: { left: `${place.x}px`, top: `${place.y}px` },
  },
  h("span", { class: "name", title: vertex.name }, vertex.name),
  h("span", { class: "row" },
    h("span", {}, `${vertex.parallelism} subtask${vertex.parallelism === 1 ? "" : "s"}${hottest ? `, hottest key ${smallPercent(hottest)}` : ""}`),
    vertex.status === "RUNNING" ? null : chip(vertex.status),
    culprit ? h("span", { class: `tag ${culprit.level}` }, { slow: "slow", skew: "slow in one", limit: "at its limit", watermark: "stands still" }[culprit.kind] ?? "waiting") : null),
  loads.length ? loadBar(load, false) : h("span", { class: "load" }, "not measured yet"),
  loads.length ? h("span", { class: "row figures-small" }, `${percent(load.busy)} busy`, h("span", {}, `${percent(load.held)} back-pressured`)) : null,
  h("span", { class: "row" },
    h("span", { class: "rates" }, `${rate(sumOf(metrics, "numRecordsInPerSecond"))} in`, h("br"), `${rate(sumOf(metrics, "numRecordsOutPerSecond"))} out`),
    spark(series?.["rows-out"], "Rows out over the last minutes")),
  h("span", { class: "mark" }, marks.length ? `event time ${behind(Math.min(...marks), now)}${lag}` : ""));
}

function details({ job, data, health, ui, update, reload }) {
  const vertex = job.vertices.find((other) => other.id === data.vertex.id) ?? job.vertices[0];
  const all = metricsOf(data.tasks, vertex);
  const bounded = all.some((metrics) => metrics.debloatedBufferSize !== undefined);
  const keyed = all.some((metrics) => metrics.hottestKeyShare !== undefined);
  const rows = data.vertex.subtasks.map((subtask) => {
    const metrics = data.tasks[`${data.vertex.id}/${subtask.subtask}`];
    const named = health.findings.some((f) => f.vertex === vertex.id && f.subtask === subtask.subtask);
    return h("tr", { key: subtask.subtask, class: named ? "named" : "" },
      h("th", { scope: "row", class: "end" }, subtask.subtask),
      h("td", {}, chip(subtask.status)),
      h("td", { class: "wide" }, metrics ? loadBar(loadOf(metrics)) : "-"),
      h("td", { class: "end" }, rate(metrics?.numRecordsInPerSecond ?? 0)),
      h("td", { class: "end" }, rate(metrics?.numRecordsOutPerSecond ?? 0)),
      h("td", { class: "end" }, short(metrics?.numRecordsIn ?? 0)),
      h("td", { class: "end" }, bytes(metrics?.numBytesIn ?? 0)),
      keyed ? h("td", { class: "end" }, smallPercent(metrics?.hottestKeyShare ?? 0)) : null,
      bounded ? h("td", { class: "end" }, metrics ? `${bytes(metrics.inputQueueSize ?? 0)}, ${duration(metrics.estimatedTimeToConsumeBuffersMs ?? 0)}` : "-") : null,
      h("td", {}, behind(markOf(metrics), job.now)),
      h("td", {}, subtask["taskmanager-id"] || "-"),
      h("td", { class: "end" }, subtask.attempt));
  });
  return h("section", { class: "panel", key: `details ${vertex.id}`, "aria-labelledby": "vertex" },
    h("h2", { id: "vertex" }, vertex.name),
    operators(data, vertex),
    h("button", { type: "button", key: "flame-button", class: "flame-button", "aria-expanded": String(ui.flame.open), onclick: () => { ui.flame.open = !ui.flame.open; update(); reload(); } }, "Flame graph"),
    ui.flame.open ? flame.view({ graph: data.calls, parallelism: vertex.parallelism, ui, update, reload }) : null,
    table("Subtasks", [["#", "end"], "State", "Time", ["In", "end"], ["Out", "end"], ["Rows in", "end"], ["Bytes in", "end"],
      ...(keyed ? [["Hottest key", "end"]] : []), ...(bounded ? [["Queued", "end"]] : []), "Event time", "Task manager", ["Attempt", "end"]], rows));
}

// The share of its subtasks' time that each operator of a chain takes.
function operators(data, vertex) {
  const metrics = metricsOf(data.tasks, vertex);
  const names = new Set(metrics.flatMap((m) => Object.keys(m).filter((name) => name.endsWith("/busyTimeMsPerSecond")).map((name) => name.split("/").slice(1, -1).join("/"))));
  if (!metrics.length || !names.size) return note("No operator times yet.");
  const share = (uid) => sumOf(metrics, `operator/${uid}/busyTimeMsPerSecond`) / 1000 / metrics.length;
  return h("ul", { class: "operators", "aria-label": "Time of each operator" }, [...names].map((uid) =>
    h("li", { key: uid }, h("span", { class: "uid" }, uid === "(output)" ? "combine, split, send" : uid),
      h("span", { class: "meter" }, h("i", { style: { width: `${Math.min(1, share(uid)) * 100}%` } })),
      h("span", { class: "end" }, percent(share(uid))))));
}

// Small elements shared by several pages.

import { h } from "./dom.js";
import { duration, iso, moment, percent } from "./format.js";

const TONES = {
  RUNNING: "good", FINISHED: "good", COMPLETED: "good", FAILED: "bad", FAILING: "bad", RESTARTING: "warn",
  RECONCILING: "busy",
  CANCELED: "off", CANCELLING: "warn", CANCELING: "warn", IN_PROGRESS: "busy",
};

export const chip = (state) =>
  h("span", { class: `chip ${TONES[state] ?? "plain"}` }, state.toLowerCase().replaceAll("_", " "));

export const time = (ms) => h("time", { datetime: iso(ms), title: iso(ms) }, moment(ms));

// The time shares of a subtask or vertex; `load` has `busy`, `held` (back-pressured) and `idle`.
export function loadBar(load, named = true) {
  const text = loadText(load);
  const part = (kind) => h("i", { class: kind, style: { width: `${Math.max(0, load[kind]) * 100}%` } });
  return h("span", { class: "load" },
    h("span", { class: "bar", role: "img", "aria-label": text }, part("busy"), part("held"), part("idle")),
    named ? h("span", { class: "load-text", "aria-hidden": "true" }, text) : null);
}

export const loadText = (load) =>
  `busy ${percent(load.busy)} · back-pressured ${percent(load.held)} · idle ${percent(load.idle)}`;

// The main state of a vertex or subtask, which sets its card's colour.
export function mood(load) {
  if (load.held >= 0.25 && load.held >= load.busy) return "held";
  return load.busy >= 0.5 ? "busy" : "idle";
}

// A line chart of the last minutes, scaled to its maximum.
export function spark(values, label, width = 96, height = 22) {
  if (!values || values.length < 2) return null;
  const top = Math.max(...values, 1e-9);
  const step = width / (values.length - 1);
  const points = values.map((value, i) => `${(i * step).toFixed(1)},${(height - 1 - (value / top) * (height - 3)).toFixed(1)}`);
  return h("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
    h("polygon", { points: `0,${height} ${points.join(" ")} ${width},${height}` }),
    h("polyline", { points: points.join(" ") }));
}

export const figure = (label, value, note) =>
  h("div", { class: "figure" }, h("dt", {}, label), h("dd", {}, value, note ? h("small", {}, note) : null));

export const figures = (...items) => h("dl", { class: "figures" }, items);

// A table in its scrolling frame; the caption is for screen readers.
export function table(caption, headings, rows, empty = "Nothing yet.") {
  const head = headings.map((heading) => {
    const [text, kind] = Array.isArray(heading) ? heading : [heading, ""];
    return h("th", { scope: "col", class: kind }, text);
  });
  return h("div", { class: "frame", role: "region", "aria-label": caption, tabindex: 0 },
    h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, h("tr", {}, head)),
      h("tbody", {}, rows.length ? rows : h("tr", { key: "empty" }, h("td", { class: "empty", colspan: headings.length }, empty)))));
}

// A finding of `health`: title, text, start time.
export function finding(found, now, ended = false) {
  const since = found.since > 0 && !ended;
  return h("li", { class: `finding ${found.level}`, key: `${found.kind} ${found.vertex} ${found.subtask}` },
    h("strong", {}, found.title),
    since ? h("span", { class: "since" }, " since ", time(found.since), `, for ${duration(now - found.since)}`) : null,
    found.text ? h("p", {}, found.text) : null);
}

// An element id from arbitrary names.
export const idOf = (...names) => names.join("-").replace(/[^\w-]/g, "_");

export const note = (...text) => h("p", { class: "note" }, text);

// Time shares of a subtask from its metrics.
export function loadOf(metrics) {
  const share = (name) => (metrics?.[`${name}TimeMsPerSecond`] ?? 0) / 1000;
  return { busy: share("busy"), held: share("backPressured"), idle: share("idle") };
}

export function meanLoad(loads) {
  const mean = (name) => loads.reduce((sum, load) => sum + load[name], 0) / (loads.length || 1);
  return { busy: mean("busy"), held: mean("held"), idle: mean("idle") };
}

export const sumOf = (metrics, name) => metrics.reduce((sum, m) => sum + (m?.[name] ?? 0), 0);

const MOST_SQUARES = 64;

// One square per slot.
export function squares(used, total) {
  if (!total || total > MOST_SQUARES) return `${used} of ${total}`;
  return h("span", { class: "squares", role: "img", "aria-label": `${used} of ${total} slots in use` },
    Array.from({ length: total }, (_, i) => h("i", { class: i < used ? "used" : "" })));
}

// State of a running job: all states with sizes by key group, their keys, the hottest keys, and the rows of one key.

import { ApiError, get, getExact } from "./api.js";
import { h } from "./dom.js";
import { bytes, number, short, smallPercent } from "./format.js";
import { browser, sizes, typed } from "./keys.js";
import { idOf, note, table } from "./parts.js";

// Less often than the metrics, because this queries the subtasks.
const EVERY_MS = 6000;

export async function load({ id, ui }, signal) {
  if (ui.state && Date.now() - ui.state.at < EVERY_MS) return ui.state;
  try {
    const [found, hot] = await Promise.all([get(`/penstock/jobs/${id}/state`, signal), getExact(`/penstock/jobs/${id}/hot-keys`, signal)]);
    const states = found.states.sort((a, b) => b.rows - a.rows);
    ui.state = { at: Date.now(), states, hot: hot.operators };
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return { ...ui.state, problem: error.message };
  }
  return ui.state;
}

export function view({ id, data, ui, update }) {
  if (!data.states) return note(data.problem);
  const ask = (uid, name, key) => lookUp({ id, uid, name, key, ui, update });
  return [
    data.problem ? note(data.problem) : null,
    data.states.length ? null : note("No operator of this job keeps state by key."),
    data.states.length ? form(data.states, ui, ask) : null,
    ui.found ? answer(ui.found) : null,
    data.states.map((state) => {
      // Hot keys belong to an operator and are shown with its largest state.
      const first = data.states.find((other) => other.uid === state.uid) === state;
      return section(state, first ? data.hot.find((operator) => operator.uid === state.uid) : null, { id, ui, ask, update });
    }),
  ];
}

function form(states, ui, ask) {
  const submit = (event) => {
    event.preventDefault();
    const [uid, name] = JSON.parse(event.target.elements.state.value);
    ask(uid, name, event.target.elements.key.value);
  };
  return h("form", { class: "ask", key: "ask", onsubmit: submit },
    h("label", {}, "State", h("select", { name: "state" }, states.map((s) =>
      h("option", { key: `${s.uid} ${s.name}`, value: JSON.stringify([s.uid, s.name]) }, `${s.uid} / ${s.title} (by ${s.key.join(", ")})`)))),
    h("label", {}, "Key", h("input", { name: "key", required: true, autocomplete: "off", placeholder: "7, or [7, \"abc\"] for several columns" })),
    h("button", { type: "submit", class: "main" }, "Look up"),
    h("span", { class: "note", role: "status" }, ui.asking ? "loading ..." : ""));
}

async function lookUp({ id, uid, name, key, ui, update }) {
  ui.asking = true;
  update();
  const path = `/penstock/jobs/${id}/state/${encodeURIComponent(uid)}/${encodeURIComponent(name)}?key=${encodeURIComponent(key)}`;
  try {
    ui.found = { uid, name, key, ...(await getExact(path)) };
  } catch (error) {
    ui.found = { uid, name, key, problem: error.message };
  }
  ui.asking = false;
  update();
  document.getElementById("answer")?.scrollIntoView({ block: "nearest" });
}

function answer(found) {
  const heading = h("h2", { id: "answer" }, `${found.uid} / ${found.title ?? found.name} of ${typeof found.key === "string" ? found.key : JSON.stringify(found.key)}`);
  if (found.problem) return h("section", { key: "answer", class: "panel", "aria-labelledby": "answer" }, heading, h("p", { class: "problem", role: "alert" }, found.problem));
  return h("section", { key: "answer", class: "panel", "aria-labelledby": "answer" }, heading,
    note(`Key group ${found["key-group"]}, subtask ${found.subtask}; the current rows, which no checkpoint contains yet.`),
    table("Rows of the key", found.schema.map((column) => column.name), found.rows.map((row, i) =>
      h("tr", { key: i }, found.schema.map((column) => h("td", {}, text(row[column.name])))))),
    found.more ? note("There are more rows.") : null);
}

const text = (value) => (value === null ? "null" : typeof value === "object" ? JSON.stringify(value) : String(value));

function section(state, hot, { id, ui, ask, update }) {
  const most = Math.max(...state.subtasks.map((part) => part.rows), 1);
  const name = idOf("state", state.uid, state.name);
  return h("section", { class: "panel", key: name, "aria-labelledby": name },
    h("h2", { id: name }, `${state.uid} / ${state.title}`),
    h("p", { class: "facts" }, h("span", {}, `${number(state.rows)} rows`), h("span", {}, `${bytes(state.bytes)} in memory`),
      h("span", {}, `key ${state.key.join(", ")}`), h("code", {}, state.schema.map((column) => `${column.name} ${column.type}`).join(", "))),
    table(`Sizes of ${state.uid} / ${state.title}`, [["Subtask", "end"], "Key groups", "Rows", ["", "end"], ["Bytes", "end"], "Largest key groups (rows)"],
      state.subtasks.map((part) => h("tr", { key: part.subtask },
        h("th", { scope: "row", class: "end" }, part.subtask),
        h("td", {}, part["key-groups"].join(" to ")),
        h("td", { class: "wide" }, h("span", { class: "meter size" }, h("i", { style: { width: `${(part.rows / most) * 100}%` } }))),
        h("td", { class: "end" }, short(part.rows)),
        h("td", { class: "end" }, bytes(part.bytes)),
        h("td", {}, part["largest-groups"].map((group) => `${group["key-group"]} (${short(group.rows)})`).join(", "))))),
    sizes(state),
    browser({ id, state, ui, ask, update }),
    hot?.keys.length ? hotKeys(state, hot, ask) : null);
}

function hotKeys(state, hot, ask) {
  return [h("h3", {}, "Hottest keys"), h("ul", { class: "hot", "aria-label": `Hottest keys of ${state.uid}` }, hot.keys.slice(0, 10).map((key) => {
    const asked = typed(key.key);
    return h("li", { key: asked },
      h("button", { type: "button", onclick: () => ask(state.uid, state.name, asked), title: "Look up its rows" }, asked),
      h("span", { class: "meter" }, h("i", { style: { width: `${key.share * 100}%` } })), smallPercent(key.share));
  }))];
}

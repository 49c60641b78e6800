// The keys of a state in a running job: number of rows by key group, and the keys page by page.

import { getExact } from "./api.js";
import { h } from "./dom.js";
import { clock, number } from "./format.js";
import { note, table } from "./parts.js";

const MOST_BARS = 128;
const PAGE = 50;
const [WIDTH, HEIGHT] = [6, 64];

// A key as typed in the form: a plain value, or JSON for several columns, for other values, and for texts that would be
// parsed as JSON or are not fully visible.
export function typed(key) {
  const values = Object.values(key);
  const [first] = values;
  const plain = values.length === 1 && first !== null && typeof first !== "object";
  return plain && !hidden(String(first)) ? String(first) : JSON.stringify(values);
}

const hidden = (text) => text !== text.trim() || /^([[{]|$)/.test(text);

// Rows by key group over all subtasks; with many groups several share a bar.
export function sizes(state) {
  const all = state.subtasks.toSorted((a, b) => a.subtask - b.subtask).flatMap((part) => {
    const [first, last] = part["key-groups"];
    const { groups, rows } = part["rows-by-group"];
    return rows.map((count, i) => ({ from: first + i * groups, to: Math.min(last, first + (i + 1) * groups - 1), rows: count }));
  });
  const together = Math.ceil(all.length / MOST_BARS);
  const bars = [];
  for (let i = 0; i < all.length; i += together) {
    const some = all.slice(i, i + together);
    bars.push({ from: some[0].from, to: some.at(-1).to, rows: some.reduce((sum, one) => sum + one.rows, 0) });
  }
  const top = bars.reduce((most, bar) => (bar.rows > most.rows ? bar : most));
  if (!top.rows) return null;
  const label = `Rows by key group: most in ${span(top)}, ${number(top.rows)}`;
  return h("figure", { class: "chart" },
    h("svg", { viewBox: `0 0 ${bars.length * WIDTH} ${HEIGHT}`, width: bars.length * WIDTH, height: HEIGHT, role: "img", "aria-label": label },
      bars.map((bar, i) => {
        const tall = bar.rows ? Math.max(1, (bar.rows / top.rows) * HEIGHT) : 0;
        return h("rect", { x: i * WIDTH, y: HEIGHT - tall, width: WIDTH - 1, height: tall }, h("title", {}, `${span(bar)}: ${number(bar.rows)} rows`));
      })),
    h("figcaption", {}, label));
}

const span = ({ from, to }) => (from === to ? `group ${from}` : `groups ${from} to ${to}`);

// The form that queries keys of a state, and the keys found; `ask` looks up the rows of a key.
export function browser({ id, state, ui, ask, update }) {
  const shown = ui.browse?.uid === state.uid && ui.browse?.name === state.name ? ui.browse : null;
  const submit = (event) => {
    event.preventDefault();
    ui.browse = { uid: state.uid, name: state.name, group: event.target.elements.group.value.trim(), keys: [] };
    more(id, ui, update);
  };
  return [
    h("form", { class: "browse", onsubmit: submit, "aria-label": `Keys of ${state.uid} / ${state.title}` },
      h("label", {}, "Key group", h("input", { name: "group", type: "number", min: 0, placeholder: "all", autocomplete: "off" })),
      h("button", { type: "submit" }, "Browse keys"),
      h("span", { class: "note", role: "status" }, shown?.busy ? "loading ..." : "")),
    shown?.problem ? h("p", { key: "problem", class: "problem", role: "alert" }, shown.problem) : null,
    shown?.at ? [
      table(`Keys of ${state.uid} / ${state.title}`, ["Key", ["Rows", "end"], ["Key group", "end"], ["Subtask", "end"]],
        shown.keys.map((found) => h("tr", { key: typed(found.key) },
          h("th", { scope: "row" }, h("button", { type: "button", class: "pick", onclick: () => ask(state.uid, state.name, typed(found.key)), title: "Look up its rows" }, typed(found.key))),
          h("td", { class: "end" }, number(found.rows)),
          h("td", { class: "end" }, found["key-group"]),
          h("td", { class: "end" }, found.subtask))),
        "No key has rows in memory."),
      note(`${number(shown.keys.length)} keys, in hash order, at ${clock(shown.at)}; keys that are not in memory are not included.`),
      shown.next === null ? null : h("button", { key: "more", type: "button", disabled: shown.busy, onclick: () => more(id, ui, update) }, "More keys"),
    ] : null,
  ];
}

async function more(id, ui, update) {
  const own = ui.browse;
  Object.assign(own, { busy: true, problem: "" });
  update();
  const query = new URLSearchParams({ limit: PAGE });
  if (own.group) query.set("key-group", own.group);
  if (own.next) query.set("after", own.next);
  try {
    const found = await getExact(`/penstock/jobs/${id}/state/${encodeURIComponent(own.uid)}/${encodeURIComponent(own.name)}/keys?${query}`);
    Object.assign(own, { keys: [...own.keys, ...found.keys], next: found.next, at: Date.now() });
  } catch (error) {
    own.problem = error.message;
  }
  own.busy = false;
  update();
}

// The event log of a job over all its leaders, newest first.

import { get } from "./api.js";
import { h } from "./dom.js";
import { table, time } from "./parts.js";

export async function load({ id }, signal) {
  return get(`/penstock/jobs/${id}/story`, signal);
}

export function view({ data }) {
  const entries = data.entries.map((entry, i) => ({ ...entry, i })).reverse();
  return table("Story of the job", ["Time", "Event", "Text", ["Leader", "end"]], entries.map((entry) =>
    h("tr", { key: entry.i }, h("td", {}, time(entry.at_ms)), h("th", { scope: "row" }, entry.kind), h("td", { class: "wide" }, entry.text),
      h("td", { class: "end" }, entry.generation))));
}

// The event log of a job over all jobs of its name and their leaders, newest first; completed checkpoints in a row are one.

import { get } from "./api.js";
import { h } from "./dom.js";
import { table, time } from "./parts.js";

export async function load({ base }, signal) {
  return get(`/penstock/jobs/${encodeURIComponent(base.job.name)}/story?condensed=true`, signal);
}

export function view({ id, data }) {
  const entries = data.entries.map((entry, i) => ({ ...entry, i })).reverse();
  return table("Story of the job", ["Time", "Event", "Text", "Job", ["Leader", "end"]], entries.map((entry) =>
    h("tr", { key: entry.i }, h("td", {}, time(entry.at_ms)), h("th", { scope: "row" }, entry.kind), h("td", { class: "wide" }, entry.text),
      h("td", {}, entry.job_id === id ? "this job" : h("a", { href: `#/jobs/${entry.job_id}/story` }, entry.job_id.slice(0, 8))),
      h("td", { class: "end" }, entry.generation))));
}

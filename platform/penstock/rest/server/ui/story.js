// The event log of a job and its leaders, or of all jobs of its name, newest first; completed checkpoints in a row are one.

import { get } from "./api.js";
import { h } from "./dom.js";
import { table, time } from "./parts.js";

export async function load({ id, ui, base }, signal) {
  const of = ui.allJobs ? encodeURIComponent(base.job.name) : id;
  return get(`/penstock/jobs/${of}/story?condensed=true`, signal);
}

export function view({ id, base, data, ui, reload }) {
  const choose = (event) => {
    ui.allJobs = event.target.checked;
    reload();
  };
  const entries = data.entries.map((entry, i) => ({ ...entry, i })).reverse();
  return [
    h("label", { class: "check" }, h("input", { type: "checkbox", checked: ui.allJobs, onchange: choose }), `All jobs named ${base.job.name}`),
    table("Story of the job", ["Time", "Event", "Text", "Job", ["Leader", "end"]], entries.map((entry) =>
      h("tr", { key: entry.i }, h("td", {}, time(entry.at_ms)), h("th", { scope: "row" }, entry.kind), h("td", { class: "wide" }, entry.text),
        h("td", {}, entry.job_id === id ? "this job" : h("a", { href: `#/jobs/${entry.job_id}/story` }, entry.job_id.slice(0, 8))),
        h("td", { class: "end" }, entry.generation)))),
  ];
}

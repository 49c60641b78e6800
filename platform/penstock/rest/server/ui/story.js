// The event log of a job over all jobs of its name and their leaders, newest first; completed checkpoints in a row are one.

import { get } from "./api.js";
import { h } from "./dom.js";
import { duration } from "./format.js";
import { table, time } from "./parts.js";

const COMPLETED = /^checkpoint:(\d+) completed\b/;
const LEAST_SERIES = 3;

export async function load({ base }, signal) {
  return get(`/penstock/jobs/${encodeURIComponent(base.job.name)}/story`, signal);
}

export function view({ id, data }) {
  const entries = condensed(data.entries.map((entry, i) => ({ ...entry, i }))).reverse();
  return table("Story of the job", ["Time", "Event", "Text", "Job", ["Leader", "end"]], entries.map((entry) =>
    h("tr", { key: entry.i }, h("td", {}, time(entry.at_ms)), h("th", { scope: "row" }, entry.kind), h("td", { class: "wide" }, entry.text),
      h("td", {}, entry.job_id === id ? "this job" : h("a", { href: `#/jobs/${entry.job_id}/story` }, entry.job_id.slice(0, 8))),
      h("td", { class: "end" }, entry.generation))));
}

// The same as `penstock story` prints: one entry for each series of completed checkpoints of a job and leader.
function condensed(entries) {
  const series = [];
  for (const entry of entries) {
    const number = entry.kind === "checkpoint" ? COMPLETED.exec(entry.text)?.[1] : undefined;
    const last = series.at(-1);
    if (number && last?.number && last.job === entry.job_id && last.leader === entry.generation) last.entries.push(entry);
    else series.push({ number, job: entry.job_id, leader: entry.generation, entries: [entry] });
  }
  return series.flatMap(({ number, entries: found }) => {
    if (!number || found.length < LEAST_SERIES) return found;
    const [first, last] = [found[0], found.at(-1)];
    const text = `checkpoints ${number} to ${COMPLETED.exec(last.text)[1]} completed, ${found.length} in ${duration(last.at_ms - first.at_ms)}`;
    return [{ ...first, text }];
  });
}

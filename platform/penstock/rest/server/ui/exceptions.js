// Failures of a job, newest first, each with the user's own lines and a collapsed list of all frames.

import { get } from "./api.js";
import { h } from "./dom.js";
import { note, time } from "./parts.js";

const OWN = "In your code:\n";
const ALL = "\n\nAll frames:\n";

export async function load({ id }, signal) {
  return get(`/jobs/${id}/exceptions`, signal);
}

export function view({ data }) {
  const entries = data.exceptionHistory.entries;
  if (!entries.length) return note("No failures.");
  return entries.map((entry, i) => {
    const { own, row, all } = parts(entry.stacktrace ?? "");
    return h("article", { class: "failure", key: `${entry.timestamp} ${i}` },
      h("h2", {}, entry.exceptionName),
      h("p", { class: "facts" }, h("span", {}, time(entry.timestamp)), entry.taskName ? h("span", {}, entry.taskName) : null,
        entry.endpoint ? h("span", {}, "worker ", h("a", { href: `#/taskmanagers/${encodeURIComponent(entry.endpoint)}`, "aria-label": `Log of ${entry.endpoint}` }, entry.endpoint)) : null,
        entry["rolled-back"] ? h("span", {}, "of the rejected version, rolled back at ", time(entry["rolled-back"])) : null),
      own ? [h("h3", {}, "In your code"), h("pre", { class: "own" }, own)] : null,
      row ? h("pre", { class: "own" }, row) : null,
      all && all !== entry.exceptionName
        ? h("details", { open: own || row ? null : true }, h("summary", {}, own || row ? "All frames" : "Details"), h("pre", {}, all))
        : null);
  });
}

// Split a failure's text into the user's own frames (with the error and the row), the row of one without, and all frames.
export function parts(text) {
  const at = text.indexOf(ALL);
  if (at < 0) return { own: "", row: "", all: text.trimEnd() };
  const head = text.slice(0, at).trimEnd();
  const all = text.slice(at + ALL.length).trimEnd();
  return head.startsWith(OWN) ? { own: head.slice(OWN.length), row: "", all } : { own: "", row: head, all };
}

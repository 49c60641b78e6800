// A job: findings, actions, and a tab for each view.

import { actions } from "./actions.js";
import { get } from "./api.js";
import * as checkpoints from "./checkpoints.js";
import { h } from "./dom.js";
import * as exceptions from "./exceptions.js";
import { duration } from "./format.js";
import * as graph from "./graph.js";
import { chip, finding, time } from "./parts.js";
import * as state from "./state.js";
import * as story from "./story.js";

const TABS = {
  graph: ["Graph", graph],
  checkpoints: ["Checkpoints", checkpoints],
  state: ["State", state],
  exceptions: ["Exceptions", exceptions],
  story: ["Story", story],
};

export const title = ({ data }) => data?.base.job.name ?? "Job";

export async function load({ args, ui }, signal) {
  const [id, tab = "graph"] = args;
  const [job, health, summary, scaling] = await Promise.all([
    get(`/jobs/${id}`, signal), get(`/penstock/jobs/${id}/health`, signal), get(`/penstock/jobs/${id}/summary`, signal),
    get(`/penstock/jobs/${id}/autoscaler`, signal),
  ]);
  const base = { job, health, summary, scaling };
  return { base, tab, inner: await page(tab).load({ id: job.jid, ui, base }, signal) };
}

const page = (tab) => (TABS[tab] ?? TABS.graph)[1];

export function view({ args, data, ui, update, reload }) {
  const { job, health, summary } = data.base;
  const ended = job["end-time"] >= 0;
  const href = (tab) => (tab === "graph" ? `#/jobs/${args[0]}` : `#/jobs/${args[0]}/${tab}`);
  return [
    h("header", { class: "job" },
      h("h1", { tabindex: -1 }, job.name),
      chip(job.state),
      h("span", { class: "facts" },
        h("span", {}, "Started ", time(job["start-time"])),
        h("span", {}, ended ? `ran ${duration(job.duration)}` : `up ${duration(job.duration)}`),
        h("span", {}, `${summary.restarts} restart${summary.restarts === 1 ? "" : "s"}`),
        summary.version ? h("span", {}, `version ${summary.version}`) : null,
        h("code", { title: "The job's id" }, job.jid)),
      ended ? null : actions(job, reload)),
    h("ul", { class: "findings", "aria-label": "Findings" }, health.findings.map((found) => finding(found, health.now, ended))),
    ended ? null : adaptive(summary),
    autoscaler(data.base.scaling),
    h("nav", { class: "tabs", "aria-label": "Parts of the job" },
      Object.entries(TABS).map(([tab, [name]]) =>
        h("a", { key: tab, href: href(tab), "aria-current": tab === data.tab ? "page" : null }, name))),
    h("div", { key: data.tab, class: "tab" }, page(data.tab).view({ id: job.jid, base: data.base, data: data.inner, ui, update, reload })),
  ];
}

// The slots of a job with the adaptive scheduler, and what it waits for.
function adaptive({ adaptive: found, "waits-for": needs }) {
  if (!found) return null;
  const more = found.most - found.slots;
  const waits = () => {
    if (needs) return ` The job waits for ${needs}.`;
    if (found["rescale-at"]) return [" It rescales to the free slots at ", time(found["rescale-at"]), "."];
    return more > 0 ? ` It waits for ${more} more.` : null;
  };
  const has = needs ? null : ` The job has ${found.slots} slot${found.slots === 1 ? "" : "s"}, between ${found.least} and ${found.most}.`;
  return h("p", { class: "note", key: "adaptive" }, "Adaptive scheduler: the parallelism follows the slots.", has, waits());
}

// The autoscaler's last decision, if it is enabled for the job.
function autoscaler(scaling) {
  const [last] = scaling.decisions;
  if (!scaling.enabled || !last) return null;
  const words = { wait: "waits", keep: "keeps the parallelism", rescale: scaling["dry-run"] ? "would rescale" : "rescales", "not-worth": "keeps the parallelism" };
  return h("p", { class: "note", key: "autoscaler" }, `Autoscaler${scaling["dry-run"] ? " (dry run)" : ""} ${words[last.kind]}: ${last.text}${last.outcome ? ` (${last.outcome})` : ""}, since `, time(last.at));
}

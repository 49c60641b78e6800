// Overview of the cluster: its jobs with their main finding, slots, task managers.

import { get } from "./api.js";
import { h } from "./dom.js";
import { duration } from "./format.js";
import { chip, figure, figures, finding, note, squares, table, time } from "./parts.js";

export const title = () => "Overview";

export async function load(_, signal) {
  const [cluster, jobs, health] = await Promise.all([
    get("/overview", signal), get("/jobs/overview", signal), get("/penstock/health", signal),
  ]);
  return { cluster, jobs: jobs.jobs, health: health.jobs };
}

export function view({ data }) {
  const { cluster, jobs, health } = data;
  const now = Date.now();
  const live = jobs.filter((job) => job["end-time"] < 0);
  const ended = jobs.filter((job) => job["end-time"] >= 0);
  return [
    h("h1", { tabindex: -1 }, "Overview"),
    figures(
      figure("Running jobs", cluster["jobs-running"]),
      figure("Slots in use", squares(cluster["slots-total"] - cluster["slots-available"], cluster["slots-total"]), `${cluster["slots-available"]} of ${cluster["slots-total"]} free`),
      figure("Task managers", h("a", { href: "#/taskmanagers" }, cluster.taskmanagers)),
      figure("Finished, canceled, failed", `${cluster["jobs-finished"]}, ${cluster["jobs-cancelled"]}, ${cluster["jobs-failed"]}`),
      figure("Version", cluster["flink-version"])),
    h("h2", {}, "Running"),
    table("Running jobs", ["Job", "State", "Finding", ["Subtasks", "end"], "Started", ["For", "end"]],
      live.map((job) => h("tr", { key: job.jid },
        h("th", { scope: "row" }, h("a", { href: `#/jobs/${job.jid}` }, job.name)),
        h("td", {}, chip(job.state)),
        h("td", { class: "wide" }, health[job.jid] ? h("ul", { class: "findings inline" }, finding(health[job.jid], now)) : "-"),
        h("td", { class: "end" }, `${job.tasks.running} of ${job.tasks.total}`),
        h("td", {}, time(job["start-time"])),
        h("td", { class: "end" }, duration(job.duration)))),
      "No job is running. Start one with penstock run, or under Submit."),
    ended.length ? h("h2", {}, "Ended") : null,
    ended.length ? table("Ended jobs", ["Job", "State", "Ended", ["After", "end"]],
      ended.map((job) => h("tr", { key: job.jid },
        h("th", { scope: "row" }, h("a", { href: `#/jobs/${job.jid}` }, job.name)),
        h("td", {}, chip(job.state)),
        h("td", {}, time(job["end-time"])),
        h("td", { class: "end" }, duration(job.duration))))) : null,
    cluster["slots-total"] ? null : note("No task manager is registered: jobs wait for slots."),
  ];
}

// Task managers with their slots and workers, and the log of a worker.

import { ApiError, get } from "./api.js";
import { h } from "./dom.js";
import { bytes, duration } from "./format.js";
import { page } from "./logs.js";
import { idOf, note, squares, table } from "./parts.js";

export const title = ({ args }) => (args[0] ? `Log of ${args[0]}` : "Task managers");

export async function load({ args }, signal) {
  if (args[0]) return { log: await get(`/penstock/workers/${encodeURIComponent(args[0])}/log`, signal) };
  const [managers, jobs] = await Promise.all([get("/taskmanagers", signal), get("/jobs/overview", signal)]);
  const running = jobs.jobs.filter((job) => job["end-time"] < 0);
  const workers = await Promise.all(running.map(async (job) => (await workersOf(job, signal)).map((worker) => ({ ...worker, job }))));
  return { managers: managers.taskmanagers, workers: workers.flat() };
}

// A job may end between the two requests.
async function workersOf(job, signal) {
  try {
    return (await get(`/penstock/jobs/${job.jid}/workers`, signal)).workers;
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return [];
    throw error;
  }
}

function memory(parts) {
  if (!parts.totalProcessMemory) return null;
  return h("span", {}, `${bytes(parts.totalProcessMemory)} of memory: ${bytes(parts.frameworkHeap)} framework, ` +
    `${bytes(parts.taskHeap)} tasks, ${bytes(parts.networkMemory)} network, ${bytes(parts.managedMemory)} managed`);
}

function network(parts) {
  if (!parts.guaranteed) return null;
  return h("span", {}, `network memory: ${bytes(parts.guaranteed)} guaranteed to slots, ${bytes(parts.lent)} of ` +
    `${bytes(parts.shared)} shared lent, ${bytes(parts.used)} used`);
}

export function view({ args, data }) {
  if (args[0]) return page(args[0], data.log.text);
  const now = Date.now();
  return [
    h("h1", { tabindex: -1 }, "Task managers"),
    h("p", {}, h("a", { href: "#/logs" }, "Log of the JobManager")),
    data.managers.length ? null : note("None is registered: jobs wait for slots. Start one with penstock taskmanager."),
    data.managers.map((manager) => {
      const own = data.workers.filter((worker) => worker.taskmanager === manager.id);
      return h("section", { class: "panel", key: manager.id, "aria-labelledby": idOf("tm", manager.id) },
        h("h2", { id: idOf("tm", manager.id) }, manager.id),
        h("p", { class: "facts" },
          h("span", {}, squares(manager.slotsNumber - manager.freeSlots, manager.slotsNumber)),
          h("span", {}, `${manager.freeSlots} of ${manager.slotsNumber} slots free`),
          memory(manager.memoryConfiguration),
          network(manager.networkMemory),
          h("span", {}, manager.path), h("span", {}, `process ${manager.pid}`),
          h("span", {}, `last heartbeat ${duration(Math.max(0, now - manager.timeSinceLastHeartbeat))} ago`),
          h("a", { href: `#/logs/${encodeURIComponent(manager.id)}`, "aria-label": `Log of ${manager.id}` }, "log")),
        table(`Workers of ${manager.id}`, ["Worker", "Slot", "Job", ["Process", "end"], ["Memory", "end"], "Log"],
          own.map((worker) => h("tr", { key: worker.id },
            h("th", { scope: "row" }, h("code", {}, worker.id)),
            h("td", {}, `${worker.slot}, ${worker.state}`),
            h("td", {}, h("a", { href: `#/jobs/${worker.job.jid}` }, worker.job.name)),
            h("td", { class: "end" }, worker.pid),
            h("td", { class: "end" }, bytes(worker.memory)),
            h("td", {}, h("a", { href: `#/taskmanagers/${encodeURIComponent(worker.id)}`, "aria-label": `Log of ${worker.id}` }, "log")))),
          "All its slots are free."));
    }),
  ];
}

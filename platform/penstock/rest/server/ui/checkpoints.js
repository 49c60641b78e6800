// Checkpoints: counts, durations, sizes, and the subtasks of one of them.

import { get } from "./api.js";
import { h } from "./dom.js";
import { bytes, duration, number } from "./format.js";
import { chip, figure, figures, note, table, time } from "./parts.js";

const DRAWN = 60;

export async function load({ id, ui, base }, signal) {
  const found = await get(`/jobs/${id}/checkpoints`, signal);
  const shown = found.history.find((entry) => entry.id === ui.checkpoint) ?? found.history.find((entry) => entry.status === "COMPLETED");
  return { ...found, parts: shown ? await partsOf(id, shown, base.job, signal) : null };
}

// Subtasks by the time of their ack: missing ones first, then the last one.
async function partsOf(id, entry, job, signal) {
  const found = await Promise.all(job.vertices.map(async (vertex) => {
    const { subtasks } = await get(`/jobs/${id}/checkpoints/details/${entry.id}/subtasks/${vertex.id}`, signal);
    return subtasks.map((subtask) => ({ ...subtask, vertex: vertex.name }));
  }));
  return { entry, subtasks: found.flat().sort((a, b) => (b.ack_timestamp ?? Infinity) - (a.ack_timestamp ?? Infinity)) };
}

export function view({ data, base, ui, reload }) {
  const choose = (id) => {
    ui.checkpoint = id;
    reload();
    document.getElementById("parts")?.scrollIntoView({ block: "nearest" });
  };
  const { counts, summary, latest, history } = data;
  const newest = latest.completed;
  return [
    figures(
      figure("Completed", number(counts.completed)),
      figure("Failed", number(counts.failed)),
      figure("In progress", number(counts.in_progress)),
      figure("Newest", newest ? time(newest.latest_ack_timestamp) : "none yet", newest ? `${duration(base.job.now - newest.latest_ack_timestamp)} ago` : null),
      figure("State", newest ? bytes(newest.state_size) : "-", newest ? `${bytes(newest.checkpointed_size)} new` : null),
      figure("Duration, p50 and p99", `${duration(summary.end_to_end_duration.p50)}, ${duration(summary.end_to_end_duration.p99)}`),
      latest.restored ? figure("Restored from", restored(latest.restored), time(latest.restored.restore_timestamp)) : null),
    chart(history),
    data.parts ? details(data.parts) : null,
    table("History of checkpoints", [["Id", "end"], "Kind", "State", "Started", ["Time", "end"], ["State size", "end"], ["Written", "end"], ["In flight", "end"], ["Subtasks", "end"], "Details"],
      history.map((entry) => h("tr", { key: entry.id },
        h("th", { scope: "row", class: "end" }, h("button", { type: "button", class: "pick", "aria-pressed": String(entry.id === data.parts?.entry.id), onclick: () => choose(entry.id), title: "Show its subtasks" }, entry.id)),
        h("td", {}, kind(entry)),
        h("td", {}, chip(entry.status)),
        h("td", {}, time(entry.trigger_timestamp)),
        h("td", { class: "end" }, duration(entry.status === "IN_PROGRESS" ? base.job.now - entry.trigger_timestamp : entry.end_to_end_duration)),
        h("td", { class: "end" }, bytes(entry.state_size)),
        h("td", { class: "end" }, bytes(entry.checkpointed_size)),
        h("td", { class: "end", title: inFlight(entry) }, bytes(entry.processed_data + entry.alignment_buffered + entry.persisted_data)),
        h("td", { class: "end" }, `${entry.num_acknowledged_subtasks} of ${entry.num_subtasks}`),
        h("td", { class: "wide path" }, entry.failure_message ?? entry.external_path ?? ""))),
      "No checkpoint has been started yet."),
  ];
}

const restored = (from) => (from.is_savepoint ? `savepoint ${from.external_path} (checkpoint ${from.id})` : `checkpoint ${from.id}`);

function details({ entry, subtasks }) {
  const missing = subtasks.filter((subtask) => subtask.status !== "completed");
  const last = subtasks.find((subtask) => subtask.status === "completed");
  const text = missing.length
    ? `${missing.length} subtasks are not done: ${missing.slice(0, 3).map((s) => `${s.index} of ${s.vertex}`).join(", ")}.`
    : `Subtask ${last.index} of ${last.vertex} was last, after ${duration(last.end_to_end_duration)}.`;
  return h("section", { class: "panel", key: `parts ${entry.id}`, "aria-labelledby": "parts" },
    h("h2", { id: "parts" }, `Checkpoint ${entry.id}, subtask by subtask`),
    note(text),
    table("Subtasks of the checkpoint", ["Operator", ["Subtask", "end"], ["Done after", "end"], ["Waited for barriers", "end"], ["Read meanwhile", "end"], ["Held back", "end"], ["Overtaken", "end"], ["Froze for", "end"], ["Wrote for", "end"], ["State size", "end"], ["Written", "end"]],
      subtasks.map((subtask) => {
        const done = subtask.status === "completed";
        const cell = (value) => h("td", { class: "end" }, done ? value() : "-");
        return h("tr", { key: `${subtask.vertex} ${subtask.index}`, class: subtask === last && !missing.length ? "last" : "" },
          h("th", { scope: "row" }, subtask.vertex), h("td", { class: "end" }, subtask.index),
          cell(() => duration(subtask.end_to_end_duration)), cell(() => duration(subtask.alignment.duration)),
          cell(() => bytes(subtask.alignment.processed)), cell(() => bytes(subtask.alignment.buffered)), cell(() => bytes(subtask.alignment.persisted)),
          cell(() => duration(subtask.checkpoint.sync)), cell(() => duration(subtask.checkpoint.async)),
          cell(() => bytes(subtask.state_size)), cell(() => bytes(subtask.checkpointed_size)));
      })));
}

// Barriers of an unaligned checkpoint could overtake rows; those that they have overtaken are part of it.
function kind(entry) {
  if (entry.is_savepoint) return "savepoint";
  if (entry.status !== "COMPLETED") return "checkpoint";
  return entry.unaligned ? `unaligned checkpoint, ${bytes(entry.persisted_data)} in flight` : "aligned checkpoint";
}

// Data between the subtasks during the alignment; only what barriers have overtaken is part of the checkpoint.
function inFlight(entry) {
  return `${bytes(entry.processed_data)} read during alignment, ${bytes(entry.alignment_buffered)} buffered behind barriers, ${bytes(entry.persisted_data)} overtaken by barriers`;
}

// Durations of the last checkpoints, oldest first; a failed one has full height and a different colour and pattern.
function chart(history) {
  const shown = history.slice(0, DRAWN).reverse();
  const done = shown.filter((entry) => entry.status === "COMPLETED");
  if (!done.length) return note("The chart appears once a checkpoint is completed.");
  const top = Math.max(...done.map((entry) => entry.end_to_end_duration), 1);
  const [width, height] = [12, 84];
  const label = `Durations of the last ${shown.length} checkpoints: at most ${duration(top)}, ${shown.filter((e) => e.status === "FAILED").length} failed`;
  return h("figure", { class: "chart" },
    h("svg", { viewBox: `0 0 ${shown.length * width} ${height}`, width: shown.length * width, height, role: "img", "aria-label": label },
      shown.map((entry, i) => {
        const tall = entry.status === "COMPLETED" ? Math.max(2, (entry.end_to_end_duration / top) * (height - 4)) : height - 4;
        return h("rect", { key: entry.id, class: entry.status.toLowerCase(), x: i * width, y: height - tall, width: width - 3, height: tall, rx: 1.5 },
          h("title", {}, `${entry.id}: ${entry.status === "COMPLETED" ? duration(entry.end_to_end_duration) : entry.status.toLowerCase()}`));
      })),
    h("figcaption", {}, label));
}

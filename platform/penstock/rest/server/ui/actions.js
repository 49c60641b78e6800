// What can be done to a running job; each asks first, and tells what became of it.

import { lacking, may } from "./access.js";
import { completion, send } from "./api.js";
import { confirm, say } from "./dialogs.js";
import { h } from "./dom.js";
import { note } from "./parts.js";

const FOLDER = {
  name: "target", label: "Folder or bucket for the savepoint",
  input: { placeholder: "the job's own, below its checkpoints" },
};

export function actions(job, reload) {
  const name = job.name;
  const path = `/jobs/${job.jid}`;
  const asked = async (what, method, where, body, status, done, below = path) => {
    const { "request-id": request } = await send(method, where, body);
    follow(what, `${below}/${status}/${request}`, done, reload);
  };
  const choices = [
    ["Savepoint", {
      title: `Take a savepoint of ${name}?`, text: "The job goes on. A savepoint is complete in itself and stays until you remove it.",
      fields: [FOLDER], action: "Take a savepoint",
      run: ({ target }) => asked("Savepoint", "POST", `${path}/savepoints`, { "target-directory": target || null }, "savepoints", (uri) => `Savepoint written: ${uri}`),
    }],
    ["Rescale", {
      title: `Rescale ${name}?`, text: "The job takes a checkpoint and goes on from it with another number of subtasks. If there are not enough slots it stays as it is.",
      fields: [{ name: "parallelism", label: "Subtasks of each operator", input: { type: "number", min: 1, max: job.maxParallelism, required: true, value: Math.max(...job.vertices.map((v) => v.parallelism)) },
        note: "Operators that were given a number of their own in the job file keep it." }],
      action: "Rescale",
      run: ({ parallelism }) => asked("Rescale", "PATCH", `${path}/rescaling?parallelism=${Number(parallelism)}`, undefined, "rescaling", () => `${name} runs with ${parallelism} subtasks`),
    }],
    ["Upgrade", { needs: "admin",
      title: `Put another version in the place of ${name}?`,
      text: "The job stops with a savepoint, and the new version goes on from it, on trial: what it writes is held back. If it fails, or has not completed its checkpoints in time, the old version comes back from the same savepoint.",
      fields: [
        { name: "file", label: "The new version", input: { type: "file", required: true, accept: ".penstock" }, note: "A file written by: penstock run job.py --write job.penstock" },
        { name: "checkpoints", label: "Checkpoints on trial", input: { type: "number", min: 1, required: true, value: 3 } },
      ],
      action: "Upgrade",
      run: ({ file, checkpoints }) => asked("Upgrade", "POST", `/penstock${path}/upgrade?checkpoints=${Number(checkpoints)}`, file, "upgrade", () => `${name} runs in its new version`, `/penstock${path}`),
    }],
    ["Stop", {
      title: `Stop ${name}?`, text: "It takes a savepoint and ends. It can be started again from that savepoint, windows that are open included.",
      fields: [FOLDER], action: "Stop the job",
      run: ({ target }) => asked("Stop", "POST", `${path}/stop`, { drain: false, targetDirectory: target || null }, "savepoints", (uri) => `Stopped with a savepoint: ${uri}`),
    }],
    ["Drain", {
      title: `Drain ${name}?`, text: "Event time goes to its end: every open window fires and every timer is called. Then it takes a savepoint and ends. For a job that will not go on.",
      fields: [FOLDER], action: "Drain and stop the job", danger: true,
      run: ({ target }) => asked("Drain", "POST", `${path}/stop`, { drain: true, targetDirectory: target || null }, "savepoints", (uri) => `Drained, with a savepoint: ${uri}`),
    }],
    ["Cancel", {
      title: `Cancel ${name}?`, text: "It ends at once, without a savepoint. Its last checkpoint is kept.", action: "Cancel the job", danger: true,
      run: async () => {
        await send("PATCH", `${path}?mode=cancel`);
        say(`${name} is being cancelled`);
        reload();
      },
    }],
  ];
  if (!may("operator")) return note(lacking("Acting on jobs needs", "operator"));
  const allowed = choices.filter(([, question]) => may(question.needs ?? "operator"));
  return h("div", { class: "actions", role: "group", "aria-label": "Actions" }, allowed.map(([label, question]) =>
    h("button", { key: label, type: "button", class: question.danger ? "danger" : "", onclick: () => confirm(question) }, label)));
}

async function follow(what, path, done, reload) {
  const tell = say(`${what} is under way ...`);
  reload();
  try {
    tell(done(await completion(path)), "good");
  } catch (error) {
    const unknown = error.status === 404; // a JobManager that was started meanwhile does not know the request
    tell(unknown ? `${what}: the JobManager does not know the request any more; the job's story tells what became of it` : `${what} failed: ${error.message}`, "bad");
  }
  reload();
}

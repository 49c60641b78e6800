// Actions on a running job, each with a confirmation and a report of its outcome.

import { lacking, may } from "./access.js";
import { completion, send } from "./api.js";
import { confirm, say } from "./dialogs.js";
import { h } from "./dom.js";
import { note } from "./parts.js";

const FOLDER = {
  name: "target", label: "Folder or bucket for the savepoint",
  input: { placeholder: "default: the job's folder" },
};

const format = (checked) => ({
  name: "native", label: "Native format", input: { type: "checkbox", checked },
  note: "Copies the checkpoint's files as they are: sooner, and only for penstock. Otherwise it has plain rows.",
});
const formatType = (native) => (native ? "NATIVE" : "CANONICAL");

export function actions(job, reload) {
  const name = job.name;
  const path = `/jobs/${job.jid}`;
  const asked = async (what, method, where, body, status, done, below = path) => {
    const { "request-id": request } = await send(method, where, body);
    follow(what, `${below}/${status}/${request}`, done, reload);
  };
  const choices = [
    ["Savepoint", {
      title: `Take a savepoint of ${name}?`, text: "The job continues. A savepoint is self-contained and stays until you delete it.",
      fields: [FOLDER, format(false)], action: "Take a savepoint",
      run: ({ target, native }) => asked("Savepoint", "POST", `${path}/savepoints`, { "target-directory": target || null, formatType: formatType(native) }, "savepoints", (uri) => `Savepoint written: ${uri}`),
    }],
    ["Rescale", {
      title: `Rescale ${name}?`, text: "The job takes a checkpoint and continues from it with another parallelism. If there are not enough slots, it is not changed.",
      fields: [{ name: "parallelism", label: "Subtasks of each operator", input: { type: "number", min: 1, max: job.maxParallelism, required: true, value: Math.max(...job.vertices.map((v) => v.parallelism)) },
        note: "Operators with an explicit parallelism in the job file keep it." }],
      action: "Rescale",
      run: ({ parallelism }) => asked("Rescale", "PATCH", `${path}/rescaling?parallelism=${Number(parallelism)}`, undefined, "rescaling", () => `${name} runs with ${parallelism} subtasks`),
    }],
    ["Upgrade", { needs: "admin",
      title: `Upgrade ${name} to a new version?`,
      text: "The job stops with a savepoint, and the new version continues from it on trial, with its output withheld. If it fails, or does not complete its checkpoints in time, the old version continues from the same savepoint.",
      fields: [
        { name: "file", label: "The new version", input: { type: "file", required: true, accept: ".penstock" }, note: "A file written by: penstock run job.py --write job.penstock" },
        { name: "checkpoints", label: "Checkpoints on trial", input: { type: "number", min: 1, required: true, value: 3 } },
        format(true),
      ],
      action: "Upgrade",
      run: ({ file, checkpoints, native }) => asked("Upgrade", "POST", `/penstock${path}/upgrade?checkpoints=${Number(checkpoints)}&native=${native}`, file, "upgrade", () => `${name} is running the new version`, `/penstock${path}`),
    }],
    ["Stop", {
      title: `Stop ${name}?`, text: "It takes a savepoint and ends. It can be restarted from that savepoint, including open windows.",
      fields: [FOLDER, format(false)], action: "Stop the job",
      run: ({ target, native }) => asked("Stop", "POST", `${path}/stop`, { drain: false, targetDirectory: target || null, formatType: formatType(native) }, "savepoints", (uri) => `Stopped with a savepoint: ${uri}`),
    }],
    ["Drain", {
      title: `Drain ${name}?`, text: "Event time advances to its end: every open window and timer fires. Then the job takes a savepoint and ends. Use this for a job that will not be continued.",
      fields: [FOLDER, format(false)], action: "Drain and stop the job", danger: true,
      run: ({ target, native }) => asked("Drain", "POST", `${path}/stop`, { drain: true, targetDirectory: target || null, formatType: formatType(native) }, "savepoints", (uri) => `Drained, with a savepoint: ${uri}`),
    }],
    ["Cancel", {
      title: `Cancel ${name}?`, text: "It ends at once, without a savepoint. Its newest checkpoint is kept.", action: "Cancel the job", danger: true,
      run: async () => {
        await send("PATCH", `${path}?mode=cancel`);
        say(`${name} is being cancelled`);
        reload();
      },
    }],
  ];
  if (!may("operator")) return note(lacking("Actions on jobs need", "operator"));
  const allowed = choices.filter(([, question]) => may(question.needs ?? "operator"));
  return h("div", { class: "actions", role: "group", "aria-label": "Actions" }, allowed.map(([label, question]) =>
    h("button", { key: label, type: "button", class: question.danger ? "danger" : "", onclick: () => confirm(question) }, label)));
}

async function follow(what, path, done, reload) {
  const tell = say(`${what} in progress ...`);
  reload();
  try {
    tell(done(await completion(path)), "good");
  } catch (error) {
    const unknown = error.status === 404; // a restarted JobManager does not know the request
    tell(unknown ? `${what}: the JobManager no longer knows the request; see the job's story for the outcome` : `${what} failed: ${error.message}`, "bad");
  }
  reload();
}

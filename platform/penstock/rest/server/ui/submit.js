// Start a job from a file that `penstock run --write` has made.

import { lacking, may } from "./access.js";
import { get, send } from "./api.js";
import { h } from "./dom.js";
import { note } from "./parts.js";

export const title = () => "Submit";

export async function load(_, signal) {
  return get("/overview", signal);
}

export function view({ data, ui, update }) {
  if (!may("admin")) return [h("h1", { tabindex: -1 }, "Submit a job"), note(lacking("Bringing code needs", "admin"))];
  const submit = async (event) => {
    event.preventDefault();
    const fields = event.target.elements;
    const query = new URLSearchParams({ token: ui.token ??= randomToken() });
    if (fields.from.value.trim()) query.set("from", fields.from.value.trim());
    if (fields.fresh.checked) query.set("fresh", "true");
    Object.assign(ui, { busy: true, problem: "" });
    update();
    try {
      const answer = await send("POST", `/penstock/submit?${query}`, fields.file.files[0]);
      location.hash = `#/jobs/${answer.jobid}`;
    } catch (error) {
      // What the JobManager has refused is another request when it is sent again; one without an answer is the same.
      Object.assign(ui, { busy: false, problem: error.message, token: error.status ? undefined : ui.token });
      update();
    }
  };
  return [
    h("h1", { tabindex: -1 }, "Submit a job"),
    note("Take a file that this has written: ", h("code", {}, "penstock run job.py --write job.penstock"),
      ". The job file itself runs on your machine: only what it has built comes here."),
    h("form", { class: "submit", key: "submit", onsubmit: submit },
      h("label", { class: "field" }, "Job", h("input", { type: "file", name: "file", required: true, accept: ".penstock", onchange: () => { ui.token = undefined; } })),
      h("label", { class: "field" }, "Start from a savepoint", h("input", { name: "from", autocomplete: "off", placeholder: "its folder; empty: the job's own newest checkpoint" })),
      h("label", { class: "check" }, h("input", { type: "checkbox", name: "fresh" }), "Start a new history instead of resuming the newest checkpoint"),
      ui.problem ? h("p", { key: "problem", class: "problem", role: "alert" }, ui.problem) : null,
      h("button", { key: "go", type: "submit", class: "main", disabled: ui.busy }, ui.busy ? "Submitting ..." : "Submit")),
    data["slots-available"] ? note(`${data["slots-available"]} of ${data["slots-total"]} slots are free.`) : note("No slot is free: the job would wait for some."),
  ];
}

function randomToken() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// Start a job from a file written by `penstock run --write`.

import { lacking, may } from "./access.js";
import { get, send } from "./api.js";
import { h } from "./dom.js";
import { note } from "./parts.js";

export const title = () => "Submit";

export async function load(_, signal) {
  return get("/overview", signal);
}

export function view({ data, ui, update }) {
  if (!may("admin")) return [h("h1", { tabindex: -1 }, "Submit a job"), note(lacking("Submitting jobs needs", "admin"))];
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
      // A request that the JobManager refused gets a new token; one without an answer is repeated with the same token.
      Object.assign(ui, { busy: false, problem: error.message, token: error.status ? undefined : ui.token });
      update();
    }
  };
  return [
    h("h1", { tabindex: -1 }, "Submit a job"),
    note("Choose a file written by: ", h("code", {}, "penstock run job.py --write job.penstock"),
      ". The job file itself runs on your machine; only the job graph is uploaded."),
    h("form", { class: "submit", key: "submit", onsubmit: submit },
      h("label", { class: "field" }, "Job", h("input", { type: "file", name: "file", required: true, accept: ".penstock", onchange: () => { ui.token = undefined; } })),
      h("label", { class: "field" }, "Start from a savepoint", h("input", { name: "from", autocomplete: "off", placeholder: "its folder; empty: the job's newest checkpoint" })),
      h("label", { class: "check" }, h("input", { type: "checkbox", name: "fresh" }), "Start a new history instead of resuming the newest checkpoint"),
      ui.problem ? h("p", { key: "problem", class: "problem", role: "alert" }, ui.problem) : null,
      h("button", { key: "go", type: "submit", class: "main", disabled: ui.busy }, ui.busy ? "Submitting ..." : "Submit")),
    data["slots-available"] ? note(`${data["slots-available"]} of ${data["slots-total"]} slots are free.`) : note("No slot is free: the job would wait for slots."),
  ];
}

function randomToken() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

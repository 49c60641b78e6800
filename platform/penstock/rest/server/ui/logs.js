// The end of the log of the JobManager or a TaskManager.

import { getText } from "./api.js";
import { h } from "./dom.js";
import { note } from "./parts.js";

export const title = ({ args }) => `Log of ${nameOf(args)}`;

const nameOf = ([taskmanager]) => taskmanager ?? "the JobManager";

export function load({ args: [taskmanager] }, signal) {
  return getText(taskmanager === undefined ? "/jobmanager/log" : `/taskmanagers/${encodeURIComponent(taskmanager)}/log`, signal);
}

export function view({ args, data }) {
  return page(nameOf(args), data.text);
}

// A log with heading and back link; also used for workers.
export function page(name, text) {
  return [
    h("p", {}, h("a", { href: "#/taskmanagers" }, "Task managers")),
    h("h1", { tabindex: -1 }, "Log of ", h("code", {}, name)),
    text ? h("pre", { class: "log", tabindex: 0, role: "region", "aria-label": `Log of ${name}` }, text) : note("The log is empty."),
  ];
}

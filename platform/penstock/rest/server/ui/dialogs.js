// Confirmation dialogs, and short notifications about outcomes.

import { h, render } from "./dom.js";

const STAYS_MS = 12_000;
let toasts = [];
let numbers = 0;
// The number of the open dialog: the answer of a closed one must not affect another.
let question = 0;

// Open a dialog, then call `run` with its values ({name: value}); an error is shown in the dialog, which stays open.
export function confirm({ title, text, fields = [], action, danger, run }) {
  const holder = document.getElementById("dialogs");
  const opener = document.activeElement;
  let problem = "";
  let busy = false;
  const mine = (question += 1);
  const close = () => {
    if (mine !== question) return;
    question += 1;
    holder.querySelector("dialog")?.close();
    render(holder, []);
    opener?.focus();
  };
  const submit = async (event) => {
    event.preventDefault();
    if (busy) return;
    const elements = [...event.target.elements].filter((element) => element.name);
    const values = Object.fromEntries(elements.map((e) => [e.name, valueOf(e)]));
    [busy, problem] = [true, ""];
    draw();
    try {
      await run(values);
      close();
    } catch (error) {
      if (mine !== question) {
        say(`${title} ${error.message}`, "bad");
        return;
      }
      [busy, problem] = [false, error.message];
      draw();
    }
  };
  const draw = () => render(holder, [
    h("dialog", { "aria-labelledby": "question", oncancel: (event) => { event.preventDefault(); close(); } },
      h("form", { onsubmit: submit },
        h("h2", { id: "question" }, title),
        h("p", {}, text),
        fields.map(drawn),
        problem ? h("p", { key: "problem", class: "problem", role: "alert" }, problem) : null,
        h("div", { key: "buttons", class: "buttons" },
          h("button", { type: "button", onclick: close }, "Close"),
          h("button", { type: "submit", class: `main${danger ? " danger" : ""}`, disabled: busy }, busy ? "Sending ..." : action)))),
  ]);
  draw();
  holder.querySelector("dialog").showModal();
}

function drawn({ name, label, input, note }) {
  const [entry, small] = [h("input", { name, autocomplete: "off", ...input }), note ? h("small", {}, note) : null];
  if (input.type !== "checkbox") return h("label", { key: name, class: "field" }, label, entry, small);
  return h("label", { key: name, class: "check field" }, entry, h("span", {}, label, small));
}

function valueOf(element) {
  if (element.type === "file") return element.files[0];
  return element.type === "checkbox" ? element.checked : element.value.trim();
}

// Show a notification for a while; return a function that replaces its text.
export function say(text, level = "plain") {
  numbers += 1;
  const toast = { id: numbers, text, level };
  toasts.push(toast);
  let timer = 0;
  const show = () => {
    drawToasts();
    clearTimeout(timer);
    timer = setTimeout(() => dismiss(toast), STAYS_MS);
  };
  show();
  return (later, level = "plain") => {
    Object.assign(toast, { text: later, level });
    if (!toasts.includes(toast)) toasts.push(toast);
    show();
  };
}

function dismiss(toast) {
  toasts = toasts.filter((other) => other !== toast);
  drawToasts();
}

function drawToasts() {
  render(document.getElementById("toasts"), toasts.map((toast) =>
    h("p", { key: toast.id, class: `toast ${toast.level}` }, h("span", {}, toast.text),
      h("button", { type: "button", class: "quiet", "aria-label": "Dismiss", onclick: () => dismiss(toast) }, "×"))));
}

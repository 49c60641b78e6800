// The frame of all pages: routing by the URL's hash, refresh every two seconds, errors, theme.

import { learn, reader } from "./access.js";
import { ApiError } from "./api.js";
import { h, render } from "./dom.js";
import * as job from "./job.js";
import * as logs from "./logs.js";
import * as overview from "./overview.js";
import * as submit from "./submit.js";
import * as taskmanagers from "./taskmanagers.js";

const EVERY_MS = 2000;
const ROUTES = [
  [/^#\/jobs\/([^/]+)(?:\/([a-z]+))?$/, job],
  [/^#\/taskmanagers(?:\/([^/]+))?$/, taskmanagers],
  [/^#\/logs(?:\/([^/]+))?$/, logs],
  [/^#\/submit$/, submit],
  [/^(?:#\/?)?$/, overview],
];
const SECTIONS = [["#/", "Overview"], ["#/taskmanagers", "Task managers"], ["#/submit", "Submit"]];

const content = document.getElementById("content");
const pulse = document.getElementById("pulse");
let shown = null;
let timer = 0;
let asking = null;

function find(hash) {
  for (const [pattern, page] of ROUTES) {
    const match = pattern.exec(hash);
    if (match) return { page, args: match.slice(1).filter((part) => part !== undefined).map(decoded) };
  }
  return null;
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function navigate() {
  const found = find(location.hash);
  const before = shown;
  if (!found) {
    location.replace("#/");
    return;
  }
  const same = before && before.page === found.page && before.args[0] === found.args[0];
  shown = { ...found, ui: same ? before.ui : {}, data: same ? before.data : null, error: null, fresh: !same && before !== null };
  if (!same) draw();
  reload();
}

async function reload() {
  clearTimeout(timer);
  asking?.abort();
  const [mine, own] = [new AbortController(), shown];
  asking = mine;
  try {
    await learn(mine.signal);
    const data = await own.page.load(own, mine.signal);
    if (shown !== own) return;
    own.data = data;
    own.error = null;
  } catch (error) {
    if (error.name === "AbortError" || shown !== own) return;
    own.error = error;
    if (!(error instanceof ApiError)) console.error(error);
  }
  try {
    draw();
  } finally {
    // a page that fails to render logs its error to the console and is refreshed again
    if (!document.hidden) timer = setTimeout(reload, EVERY_MS);
  }
}

function draw() {
  const { page, data, error, fresh } = shown;
  const context = { ...shown, update: draw, reload };
  document.title = `${page.title(shown)} · penstock`;
  pulse.textContent = error && !error.status ? "not connected, trying again" : data ? "connected" : "loading";
  document.getElementById("reader").textContent = reader();
  pulse.className = `pulse ${error ? "bad" : "good"}`;
  render(document.getElementById("sections"), SECTIONS.map(([href, name]) =>
    h("a", { href, "aria-current": (location.hash || "#/") === href ? "page" : null }, name)));
  render(content, [
    error ? h("p", { key: "error", class: "problem", role: "alert" }, error.message) : null,
    data ? h("div", { key: `${ROUTES.findIndex((route) => route[1] === page)} ${shown.args[0]}`, class: "page" }, page.view(context)) : error ? null : h("p", { key: "loading", class: "note" }, "Loading ..."),
  ]);
  if (fresh && data) {
    shown.fresh = false;
    content.querySelector("h1")?.focus();
  }
}

function theme(wanted) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = wanted ?? localStorage.getItem("penstock-theme") ?? (dark ? "dark" : "light");
  document.documentElement.style.colorScheme = now;
  const button = document.getElementById("theme");
  const other = now === "dark" ? "light" : "dark";
  button.textContent = `Use ${other}`;
  button.setAttribute("aria-label", `Use the ${other} colours`);
  button.onclick = () => {
    localStorage.setItem("penstock-theme", other);
    theme(other);
  };
}

document.getElementById("skip").onclick = () => content.focus();
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : reload()));
addEventListener("hashchange", navigate);
theme();
navigate();

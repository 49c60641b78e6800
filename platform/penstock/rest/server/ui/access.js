// What the reader's token allows, so that nothing is offered that would be refused; asked for once.

import { get } from "./api.js";

const ROLES = ["viewer", "operator", "admin"];
let known = null;

export async function learn(signal) {
  known ??= await get("/penstock/access", signal);
}

export const may = (needed) => ROLES.indexOf(known?.role) >= ROLES.indexOf(needed);

// "grafana (viewer)"; nothing where the cluster has no tokens.
export const reader = () => (known?.name ? `${known.name} (${known.role})` : "");

// What is said where something is left out.
export const lacking = (what, needed) => `${what} an ${needed}'s token, and ${reader()} has another.`;

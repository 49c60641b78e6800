// The role of the user's token, queried once, so that the pages offer only permitted actions.

import { get } from "./api.js";

const ROLES = ["viewer", "operator", "admin"];
let known = null;

export async function learn(signal) {
  known ??= await get("/penstock/access", signal);
}

export const may = (needed) => ROLES.indexOf(known?.role) >= ROLES.indexOf(needed);

// For example "grafana (viewer)"; empty if the cluster has no tokens.
export const reader = () => (known?.name ? `${known.name} (${known.role})` : "");

// The note in place of an action that the role does not permit.
export const lacking = (what, needed) => `${what} the role ${needed}; this token belongs to ${reader()}.`;

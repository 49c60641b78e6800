// Requests to the JobManager that served this page, and to no other host. If it requires a token, the browser has asked
// the user for it (as a password) before it loaded this file, and sends it automatically.

const BASE = "../v1";

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export function get(path, signal) {
  return ask("GET", path, undefined, signal);
}

// Like `get`, for responses with arbitrary integers of users: those that a JavaScript number would round become
// strings.
export function getExact(path, signal) {
  return ask("GET", path, undefined, signal, exact);
}

function exact(_, value, context) {
  const rounded = Number.isInteger(value) && !Number.isSafeInteger(value) && /^-?\d+$/.test(context.source);
  return rounded ? context.source : value;
}

// Return {text} of a plain-text response.
export async function getText(path, signal) {
  const answer = await answered("GET", path, { signal });
  const text = await answer.text();
  if (!answer.ok) throw new ApiError(`${answer.status} for ${path}`, answer.status);
  return { text };
}

export function send(method, path, body) {
  return ask(method, path, body);
}

async function ask(method, path, body, signal, reviver) {
  const headers = {};
  const binary = body instanceof Blob;
  if (body !== undefined) headers["Content-Type"] = binary ? "application/octet-stream" : "application/json";
  const answer = await answered(method, path, { headers, signal, body: binary ? body : JSON.stringify(body) });
  const text = await answer.text();
  let found;
  try {
    found = text ? JSON.parse(text, reviver) : {};
  } catch {
    throw new ApiError(`The answer to ${path} is not JSON (status ${answer.status}).`, answer.status);
  }
  if (!answer.ok) throw new ApiError(found.errors?.join(" ") ?? `${answer.status} for ${path}`, answer.status);
  return found;
}

async function answered(method, path, options) {
  try {
    return await fetch(BASE + path, { method, ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The JobManager does not answer.", 0);
  }
}

// Poll a request until it has ended; return its location ("" for none) or throw its failure. An unreachable JobManager
// is polled again, because the request may still be in progress.
export async function completion(path, signal, pauseMs = 500) {
  for (;;) {
    const found = await get(path, signal).catch((error) => {
      if (error.status !== 0) throw error;
      return null;
    });
    if (found !== null && found.status.id !== "IN_PROGRESS") {
      const cause = found.operation?.["failure-cause"];
      if (cause) throw new ApiError(cause["stack-trace"] ?? "it failed", 500);
      return found.operation?.location ?? "";
    }
    await new Promise((resolve) => setTimeout(resolve, pauseMs));
  }
}

// Formatting of numbers. Times are milliseconds since 1970 and are shown in the user's time zone.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const clockForm = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dayForm = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });

// Watermarks below the first are not set yet; above the second, the input has ended (milliseconds).
const NEVER = -4e15;
const FOREVER = 4e15;
// If the difference is larger, the data is not live and the time itself is shown.
const DAY = 86_400_000;

export const number = (value) => whole.format(value);

// 1,234 then 12.3 k, 4.56 M ...
export function short(value) {
  if (Math.abs(value) < 10_000) return Math.abs(value) < 10 && value % 1 ? value.toFixed(1) : whole.format(value);
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${three(value / size)} ${unit}`;
  }
  return whole.format(value);
}

export const rate = (value) => `${short(value)}/s`;

export function bytes(value) {
  for (const [size, unit] of [[2 ** 40, "TB"], [2 ** 30, "GB"], [2 ** 20, "MB"], [2 ** 10, "kB"]]) {
    if (value >= size) return `${three(value / size)} ${unit}`;
  }
  return `${whole.format(value)} B`;
}

const three = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));

export const percent = (share) => `${Math.round(share * 100)} %`;

// A small share as well: 12 %, 0.4 %, < 0.1 %.
export function smallPercent(share) {
  if (!share || share >= 0.01) return percent(share);
  return share < 0.001 ? "< 0.1 %" : `${(share * 100).toFixed(1)} %`;
}

// At most two units: 340 ms, 4.2 s, 5 min 3 s, 2 h 10 min, 3 d 4 h.
export function duration(ms) {
  if (!(ms >= 0)) return "-";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const parts = [[86_400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([size]) => seconds >= size);
  const [size, unit] = parts[first];
  const count = Math.floor(seconds / size);
  if (first === 3) return `${count} s`;
  const [smaller, smallerUnit] = parts[first + 1];
  const rest = Math.floor((seconds - count * size) / smaller);
  return rest ? `${count} ${unit} ${rest} ${smallerUnit}` : `${count} ${unit}`;
}

export const clock = (ms) => (ms > 0 ? clockForm.format(ms) : "-");

// With the date, unless it is today.
export function moment(ms, now = Date.now()) {
  if (!(ms > 0)) return "-";
  return new Date(ms).toDateString() === new Date(now).toDateString() ? clock(ms) : `${dayForm.format(ms)} ${clock(ms)}`;
}

export const iso = (ms) => (ms > 0 ? new Date(ms).toISOString() : "");

// The event time of a subtask: its output watermark, or its input watermark if it emits none, like a sink.
export function markOf(metrics) {
  const emitted = metrics?.currentOutputWatermark;
  return emitted === undefined || emitted < NEVER ? metrics?.currentInputWatermark ?? emitted : emitted;
}

// The distance of event time from now, or its state, as text.
export function behind(watermark, now) {
  if (watermark === undefined || watermark < NEVER) return "no watermark yet";
  if (watermark > FOREVER) return "input has ended";
  if (Math.abs(now - watermark) > DAY) return moment(watermark, now);
  return watermark > now ? `${duration(watermark - now)} ahead` : `${duration(now - watermark)} behind`;
}

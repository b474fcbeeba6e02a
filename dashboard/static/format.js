// Figures in words: one way to write each unit, and one way to write what is not known.

export const UNKNOWN = "–";

// A number and its unit stay on one line.
const SPACE = "\u00a0";

const SECOND_UNITS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"], [1e-12, "ps"]];
const BYTE_UNITS = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];
const AGE_UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}

// Three significant digits, never in exponent notation.
function significant(value) {
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  const digits = value === 0 ? 0 : Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  return value.toFixed(Math.min(digits, 6));
}

function scaled(value, units, write) {
  const [size, unit] = units.find(([unitSize]) => Math.abs(value) >= unitSize) ?? units.at(-1);
  return `${write(value / size)}${SPACE}${unit}`;
}

export function formatRatio(value) {
  return known(value) ? value.toFixed(2) : UNKNOWN;
}

export function formatPercent(share) {
  return known(share) ? `${(100 * share).toFixed(1)}${SPACE}%` : UNKNOWN;
}

export function formatSeconds(seconds) {
  if (!known(seconds)) return UNKNOWN;
  return seconds === 0 ? `0${SPACE}s` : scaled(seconds, SECOND_UNITS, significant);
}

export function formatBytes(bytes) {
  if (!known(bytes)) return UNKNOWN;
  return bytes === 0 ? `0${SPACE}B` : scaled(bytes, BYTE_UNITS, significant);
}

// Axis ticks are round numbers already: no trailing zeros.
export function formatTick(format) {
  return (value) => format(value).replace(/\.0+(?=\s|$)|(\.\d*[1-9])0+(?=\s|$)/, "$1");
}

export function formatAge(seconds) {
  return known(seconds) ? scaled(Math.max(0, seconds), AGE_UNITS, Math.floor) : UNKNOWN;
}

export function formatCount(value) {
  return known(value) ? value.toLocaleString("en") : UNKNOWN;
}

// Of today the time is enough.
export function formatDate(unixSeconds) {
  if (!known(unixSeconds) || unixSeconds <= 0) return UNKNOWN;
  const date = new Date(1000 * unixSeconds);
  const today = date.toDateString() === new Date().toDateString();
  return today ? date.toLocaleTimeString() : date.toLocaleString();
}

// Seconds of ranks, as the hours of accelerators that managers count.
export function formatRankHours(rankSeconds) {
  return known(rankSeconds) ? `${significant(rankSeconds / 3600)}${SPACE}GPU-h` : UNKNOWN;
}

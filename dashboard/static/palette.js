// Colours for canvases, read from the style sheet so that light and dark are defined once.

const HEAT_STOPS = ["--heat-0", "--heat-1", "--heat-2", "--heat-3", "--heat-4"];
const TABLE_SIZE = 256;

const darkScheme = window.matchMedia("(prefers-color-scheme: dark)");

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function onSchemeChange(callback) {
  darkScheme.addEventListener("change", callback);
}

function channels(hex) {
  return [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16));
}

function blend(from, to, share) {
  return from.map((value, i) => Math.round(value + share * (to[i] - value)));
}

// 256 RGBA pixels, each one 32-bit word, from even (0) to the end of the scale (255).
export function heatTable() {
  const stops = HEAT_STOPS.map((name) => channels(colour(name)));
  const bytes = new Uint8ClampedArray(4 * TABLE_SIZE);
  for (let i = 0; i < TABLE_SIZE; i += 1) {
    const at = (i / (TABLE_SIZE - 1)) * (stops.length - 1);
    const stop = Math.min(Math.floor(at), stops.length - 2);
    bytes.set([...blend(stops[stop], stops[stop + 1], at - stop), 255], 4 * i);
  }
  return new Uint32Array(bytes.buffer);
}

// A missing measurement is see-through, so that a gap is drawn as a gap.
export const NO_COLOUR = 0;

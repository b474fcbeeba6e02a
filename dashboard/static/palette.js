// Colours for canvases, read from the style sheet so that light and dark are defined once.

import { onSchemeChange } from "./theme.js";

const HEAT_STOPS = ["--heat-0", "--heat-1", "--heat-2", "--heat-3", "--heat-4"];
const TABLE_SIZE = 256;
const EVEN_PERMILLE = 1000;

const known = new Map();
onSchemeChange(() => known.clear());

// What a colour of the style sheet comes to in the scheme that is shown: rgb(r, g, b), maybe rgba.
export function colour(name) {
  if (!known.has(name)) {
    const probe = document.createElement("span");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    known.set(name, getComputedStyle(probe).color);
    probe.remove();
  }
  return known.get(name);
}

function channels(text) {
  return text.match(/[\d.]+/g).slice(0, 3).map(Number);
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

// The pixel of every slowdown in thousandths; from 1 to `top` the scale runs through the table.
export function heatPixels(top) {
  const table = heatTable();
  const pixels = new Uint32Array(1 << 16).fill(table[0]);
  const span = 1000 * top - EVEN_PERMILLE;
  for (let value = EVEN_PERMILLE; value < pixels.length; value += 1) {
    const at = Math.round(((value - EVEN_PERMILLE) / span) * (TABLE_SIZE - 1));
    pixels[value] = table[Math.min(TABLE_SIZE - 1, at)];
  }
  return pixels;
}

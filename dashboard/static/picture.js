// A view as a picture: its canvases as they are, or its figures where it has none.

import { colour } from "./palette.js";
import { cellText, heading } from "./table.js";

const GAP_PX = 16;
const LINE_PX = 20;
const MAX_LINES = 60;
const MAX_CHARACTERS = 80;
const FONT = "13px system-ui, sans-serif";

// All canvases of a view below each other, on the page's own ground; null if it has none.
export function asPicture(canvases) {
  const drawn = canvases.filter(({ width, height }) => width > 0 && height > 0);
  if (drawn.length === 0) return null;
  // A heatmap has a pixel for each cell; it is taken as large as it is seen.
  const sizes = drawn.map((canvas) => {
    const box = canvas.getBoundingClientRect();
    return [
      Math.max(canvas.width, Math.round(box.width * devicePixelRatio)),
      Math.max(canvas.height, Math.round(box.height * devicePixelRatio)),
    ];
  });
  const whole = document.createElement("canvas");
  whole.width = Math.max(...sizes.map(([width]) => width)) + 2 * GAP_PX;
  whole.height = sizes.reduce((sum, [, height]) => sum + height + GAP_PX, GAP_PX);
  const context = whole.getContext("2d");
  context.fillStyle = colour("--panel");
  context.fillRect(0, 0, whole.width, whole.height);
  context.imageSmoothingEnabled = false;
  let top = GAP_PX;
  drawn.forEach((canvas, i) => {
    context.drawImage(canvas, GAP_PX, top, ...sizes[i]);
    top += sizes[i][1] + GAP_PX;
  });
  return whole;
}

// A table as a picture of its first rows, long texts cut.
export function tablePicture(title, { columns, rows }) {
  const cut = (text) => (text.length > MAX_CHARACTERS ? `${text.slice(0, MAX_CHARACTERS)}…` : text);
  const lines = [
    columns.map(heading),
    ...rows.slice(0, MAX_LINES).map((row) => row.map((value, at) => cellText(value, columns[at]))),
  ].map((line) => line.map(cut));
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("2d");
  context.font = FONT;
  const widths = columns.map((_, at) =>
    lines.reduce((most, line) => Math.max(most, context.measureText(line[at]).width), 0),
  );
  const ratio = Math.max(1, devicePixelRatio);
  canvas.width = ratio * widths.reduce((sum, width) => sum + width + GAP_PX, GAP_PX);
  canvas.height = ratio * ((lines.length + 2) * LINE_PX + GAP_PX);
  context.scale(ratio, ratio);
  context.fillStyle = colour("--panel");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.font = `600 ${FONT}`;
  context.fillStyle = colour("--text");
  context.fillText(title, GAP_PX, LINE_PX);
  lines.forEach((line, row) => {
    context.font = FONT;
    context.fillStyle = colour(row === 0 ? "--text-soft" : "--text");
    let left = GAP_PX;
    line.forEach((text, at) => {
      context.fillText(text, left, (row + 2.5) * LINE_PX);
      left += widths[at] + GAP_PX;
    });
  });
  return canvas;
}

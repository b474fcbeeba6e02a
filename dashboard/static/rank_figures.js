// What a heatmap tells, in figures: each rank's mean and worst slowdown, the worst rank first.

import { formatRatio } from "./format.js";

const COLUMNS = [
  { name: "rank" },
  { name: "node" },
  { name: "pool" },
  { name: "mean slowdown", format: formatRatio },
  { name: "worst slowdown", format: formatRatio },
  { name: "at step" },
];
const WORST = 4;

// Of the matrix's steps `from` to `to`, the last one excluded. known: rows of ranks, by number.
export function rankFigures(matrix, known, from, to) {
  const rows = Array.from({ length: matrix.ranks }, (_, rank) => {
    let [sum, most, at] = [0, -1, null];
    for (let number = from; number < to; number += 1) {
      const value = matrix.at(number, rank);
      sum += value;
      if (value > most) [most, at] = [value, matrix.stepAt(number)];
    }
    const { node = null, pool = null } = known[rank] ?? {};
    return [rank, node, pool, sum / (to - from) / 1000, most / 1000, at];
  });
  return { columns: COLUMNS, rows: rows.sort((a, b) => b[WORST] - a[WORST]) };
}

// In which order ranks are listed: by their place in the mesh, or by how slow they are.

const MESH = ["dp", "pool", "cp", "pp", "rank"];

export const ORDERS = { mesh: "by place: DP, pool, CP, PP", slowest: "slowest first", rank: "by rank" };

function byMesh(a, b) {
  for (const name of MESH) if (a[name] !== b[name]) return a[name] - b[name];
  return 0;
}

// Mean slowdown of every rank in the matrix's steps `from` to `to`, the last one excluded.
export function meanSlowdowns(matrix, from, to) {
  const sums = new Float64Array(matrix.ranks);
  for (let number = from; number < to; number += 1) {
    const row = matrix.offset(number);
    for (let rank = 0; rank < matrix.ranks; rank += 1) sums[rank] += matrix.cells[row + rank];
  }
  return sums;
}

// Ranks in the order of the heatmap's rows. rows: what is known of each rank, by number.
export function orderRanks(name, matrix, rows, from, to) {
  const order = Uint32Array.from({ length: matrix.ranks }, (_, rank) => rank);
  if (name === "slowest") {
    const sums = meanSlowdowns(matrix, from, to);
    return order.sort((a, b) => sums[b] - sums[a] || a - b);
  }
  if (name === "rank" || !rows.length) return order;
  const place = (rank) => rows[rank] ?? { dp: 0, pool: 0, cp: 0, pp: 0, rank };
  return order.sort((a, b) => byMesh(place(a), place(b)));
}

// In words: where a rank stands and runs.
export function placeText(row) {
  if (!row) return "";
  return `${row.node}, DP ${row.dp}, pool ${row.pool}, CP ${row.cp}, PP ${row.pp}`;
}

// How the newest step lay on its pools: under plain Ulysses, as it was, and as no plan can beat.

import { element, key } from "./dom.js";
import { formatRatio, formatSeconds } from "./format.js";
import { Panel } from "./panel.js";

const MAX_POOLS = 24;

export class PoolsPanel extends Panel {
  static title = "Pools";
  static about =
    "Seconds of the slowest rank of each pool in the newest step. The mark is the mean of all ranks' work, " +
    "below which no placement goes.";

  build(body) {
    this.bars = element("ol", { class: "bars", id: "pool-bars" });
    this.readout = element("p", { class: "readout", id: "pools-readout" });
    const lines = { home: "plain Ulysses, by the model", measured: "as measured", bound: "lower bound" };
    body.append(key(lines), this.bars, this.readout);
  }

  emptySentence({ loads }) {
    return loads?.pools.length ? null : "Waiting for a step that the cost model can price.";
  }

  // The slowest pools: the others hold nobody up.
  slowest() {
    const { loads } = this.store;
    const order = loads.pools.map((_, at) => at);
    return order.sort((a, b) => loads.measured_seconds[b] - loads.measured_seconds[a]);
  }

  draw({ loads }) {
    const shown = this.slowest().slice(0, MAX_POOLS);
    const most = Math.max(...loads.home_seconds, ...loads.measured_seconds, loads.bound_seconds);
    this.bars.replaceChildren(...shown.map((at) => this.row(loads, at, most)));
    const slowest = shown[0];
    const [home, measured] = [Math.max(...loads.home_seconds), loads.measured_seconds[slowest]];
    const times = (seconds) => `${formatRatio(seconds / loads.bound_seconds)} × the bound`;
    const of = (seconds) => `${formatSeconds(seconds)} (${times(seconds)})`;
    const all = loads.pools.length;
    const cut = all > shown.length ? ` The slowest ${shown.length} of ${all} pools are drawn.` : "";
    const bound = `bound ${formatSeconds(loads.bound_seconds)}`;
    this.say(
      `Step ${loads.step}: slowest pool ${of(measured)}, under plain Ulysses ${of(home)}, ${bound}.${cut}`,
    );
  }

  row(loads, at, most) {
    const bar = (name, seconds) => {
      const node = element("span", { class: `bar-of ${name}` });
      node.style.width = `${(100 * seconds) / most}%`;
      return node;
    };
    const bound = element("span", { class: "bound-mark" });
    bound.style.left = `${(100 * loads.bound_seconds) / most}%`;
    const [home, measured] = [loads.home_seconds[at], loads.measured_seconds[at]];
    const bars = [bar("home", home), bar("measured", measured), bound];
    const track = element("span", { class: "track", "aria-hidden": "true" }, ...bars);
    const text = `${formatSeconds(home)} → ${formatSeconds(measured)}`;
    const slowest = element("span", { class: "note" }, `rank ${loads.slowest_rank[at]}`);
    const name = element("span", {}, `pool ${loads.pools[at]}`);
    return element("li", {}, name, track, element("span", { class: "number" }, text), slowest);
  }

  table() {
    const told = ["home_seconds", "measured_seconds", "pool_bound_seconds"];
    const names = ["pools", "ranks", ...told, "slowest_rank"];
    const seconds = (value) => value.toFixed(6);
    const columns = [
      { name: "pool" },
      { name: "ranks" },
      { name: "plain Ulysses", unit: "s", format: seconds },
      { name: "measured", unit: "s", format: seconds },
      { name: "mean of the pool", unit: "s", format: seconds },
      { name: "slowest rank" },
    ];
    const { loads } = this.store;
    const rows = loads ? loads.pools.map((_, at) => names.map((name) => loads[name][at])) : [];
    return { columns, rows };
  }
}

customElements.define("libra-pools", PoolsPanel);

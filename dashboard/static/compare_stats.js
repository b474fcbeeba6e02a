// What two stretches of steps have in common and what not, in a few robust figures.

// A stretch as the URL names it: job, or job~from-to. Names of jobs hold no "~".
export function parseStretch(text) {
  const match = /^(.*?)(?:~(\d{1,15})-(\d{1,15}))?$/.exec(text ?? "");
  const [, job, from, to] = match;
  const steps = from === undefined ? null : { from: Number(from), to: Number(to) };
  return { job, steps };
}

export function stretchText({ job, steps }) {
  return steps ? `${job}~${steps.from}-${steps.to}` : job;
}

export function quantile(values, share) {
  const sorted = values.filter((value) => typeof value === "number").sort((a, b) => a - b);
  if (sorted.length === 0) return null;
  const at = share * (sorted.length - 1);
  const low = Math.floor(at);
  return sorted[low] + (at - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
}

const median = (values) => quantile(values, 0.5);

// Rows of the skew view, of the steps of the stretch.
export function rowsOf(view, steps) {
  return view.steps
    .map((step, i) => ({
      step,
      skew: view.skew[i],
      home: view.home_skew[i],
      seconds: view.step_seconds[i],
      policy: view.policy_version[i],
    }))
    .filter(({ step }) => !steps || (step >= steps.from && step <= steps.to));
}

export function stretchStats(rows) {
  const column = (name) => rows.map((row) => row[name]);
  const policies = [...new Set(column("policy"))].sort((a, b) => a - b);
  return {
    steps: rows.length,
    first: rows[0]?.step ?? null,
    last: rows.at(-1)?.step ?? null,
    skew: median(column("skew")),
    worst: quantile(column("skew"), 0.95),
    home: median(column("home")),
    seconds: median(column("seconds")),
    policies: policies.length > 3 ? `${policies[0]} to ${policies.at(-1)}` : policies.join(", "),
  };
}

// A difference of medians that chance alone would rarely make: their ratio, and its 95 % interval by
// a bootstrap with a seed of its own, so that the same steps always give the same answer.
export function compareMedians(before, after, resamples = 400) {
  const [a, b] = [before, after].map((values) => values.filter((v) => typeof v === "number" && v > 0));
  if (a.length < 5 || b.length < 5) return null;
  const random = generator(1);
  const draw = (values) => median(values.map(() => values[Math.floor(random() * values.length)]));
  const ratios = Array.from({ length: resamples }, () => draw(b) / draw(a));
  return { ratio: median(b) / median(a), low: quantile(ratios, 0.025), high: quantile(ratios, 0.975) };
}

// Marsaglia's xorshift, 32 bits: Journal of Statistical Software 8 (14), 2003.
function generator(seed) {
  let state = seed;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 2 ** 32;
  };
}

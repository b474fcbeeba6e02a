// Script time of what may be slow, for the browser's own performance tools and the benchmark.

export function timed(name, run) {
  const start = performance.now();
  try {
    return run();
  } finally {
    performance.measure(name, { start, end: performance.now() });
    // The browser keeps all of them otherwise, for as long as the page is open.
    if (performance.getEntriesByName(name).length > 1000) performance.clearMeasures(name);
  }
}

// The balancer's public HTTP API, read with relative URLs so that it works behind any prefix.

const TIMEOUT_MS = 10_000;
const WHY = { TimeoutError: "did not answer in time", SyntaxError: "did not answer in JSON" };

export class ApiError extends Error {
  constructor(status, detail) {
    super(detail);
    this.name = "ApiError";
    this.status = status;
  }
}

async function problemDetail(response) {
  const problem = await response.json().catch(() => ({}));
  return problem.detail || problem.title || response.statusText || `status ${response.status}`;
}

async function get(url) {
  try {
    const response = await fetch(url, {
      headers: { accept: "application/json" },
      cache: "no-store",
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    if (!response.ok) throw new ApiError(response.status, await problemDetail(response));
    return await response.json();
  } catch (error) {
    if (error instanceof ApiError) throw error;
    throw new ApiError(0, `The balancer ${WHY[error.name] ?? "is unreachable"}`);
  }
}

function url(path, query = {}) {
  const target = new URL(`api/v1/${path}`, document.baseURI);
  for (const [name, value] of Object.entries(query)) target.searchParams.set(name, value);
  return target;
}

export function fetchJobs() {
  return get(url("jobs")).then((body) => body.jobs);
}

// The views of one job.
export class JobApi {
  constructor(job) {
    this.path = `jobs/${encodeURIComponent(job)}`;
  }

  summary() {
    return get(url(this.path));
  }

  // name: skew, ranks or exchange; last: how many of the newest complete steps.
  steps(name, last) {
    return get(url(`${this.path}/${name}`, { last }));
  }

  model() {
    return get(url(`${this.path}/model`));
  }

  policies() {
    return get(url(`${this.path}/policies`)).then((body) => body.policies);
  }

  eventsUrl() {
    return url(`${this.path}/events`);
  }
}

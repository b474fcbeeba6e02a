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

let unauthorized = () => {};

// heard() is called when the balancer no longer knows who is reading.
export function onUnauthorized(heard) {
  unauthorized = heard;
}

async function get(url, options) {
  return ask(url, options).catch((error) => {
    if (error.status === 401) unauthorized();
    throw error;
  });
}

function send(method, url, body) {
  const headers = { "content-type": "application/json" };
  return ask(url, { method, headers, body: JSON.stringify(body) });
}

const post = (url, body) => send("POST", url, body);

const asJson = (response) => response.json();

async function ask(url, { headers = {}, read = asJson, ...options } = {}) {
  try {
    const response = await fetch(url, {
      headers: { accept: "application/json", ...headers },
      cache: "no-store",
      signal: AbortSignal.timeout(TIMEOUT_MS),
      ...options,
    });
    if (!response.ok) throw new ApiError(response.status, await problemDetail(response));
    return await read(response);
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

export function fetchSession() {
  return get(url("session"));
}

export function sendLogin(token) {
  return post(url("login"), { token });
}

export function sendLogout() {
  return post(url("logout"), {});
}

export function jobsEventsUrl() {
  return url("events");
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

  // {policies, decisions}, both oldest first.
  policies() {
    return get(url(`${this.path}/policies`));
  }

  // The slowdowns of the newest steps, as `matrix.js` reads them.
  slowdown(last) {
    const headers = { accept: "application/octet-stream" };
    const read = (response) => response.arrayBuffer();
    return get(url(`${this.path}/slowdown`, { last }), { headers, read });
  }

  rank(rank, last) {
    return get(url(`${this.path}/ranks/${rank}`, { last }));
  }

  loads() {
    return get(url(`${this.path}/loads`));
  }

  // What each pool size would do, for either way in which ranks meet.
  advice() {
    return get(url(`${this.path}/pools`)).then((body) => body.advice);
  }

  setMode(mode) {
    return send("PUT", url(`${this.path}/mode`), { mode });
  }

  publish(draft) {
    return post(url(`${this.path}/publish`), draft);
  }

  rollBack(wanted) {
    return post(url(`${this.path}/rollback`), wanted);
  }

  eventsUrl() {
    return url(`${this.path}/events`);
  }
}

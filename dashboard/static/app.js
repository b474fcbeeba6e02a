// The page: picks the job, lists the others, and keeps the clock that everything else goes by.

import { ApiError, fetchJobs } from "./api.js";
import { byId, showNotice } from "./dom.js";
import { Header } from "./header.js";
import { JobPage } from "./job.js";
import { Login } from "./login.js";

const AGE_MS = 1_000;
const REFRESH_MS = 3_000;
const JOBS_EVERY = 5;

function pickJob(jobs) {
  const newest = [...jobs].sort((a, b) => a.last_report_age_seconds - b.last_report_age_seconds);
  return (newest.find((job) => job.state === "active") ?? newest[0])?.job;
}

class App {
  constructor() {
    this.header = new Header((job) => location.assign(`?${new URLSearchParams({ job })}`));
    this.page = null;
    this.login = new Login({
      left: () => this.page?.pause(),
      entered: () => this.page?.resume(),
    });
  }

  async run() {
    setInterval(() => this.header.showAge(), AGE_MS);
    // One round after the other, so a slow balancer is not asked twice at once. A fault must not
    // end the rounds, or the page would go on showing old figures.
    for (let round = 0; ; round += 1) {
      if (!document.hidden) await this.round(round).catch(reportError);
      await new Promise((resolve) => setTimeout(resolve, REFRESH_MS));
    }
  }

  async round(number) {
    if (!(await this.mayRead())) return;
    await this.page?.refresh();
    if (!this.page || number % JOBS_EVERY === 0) await this.listJobs();
  }

  // Who logs in needs time: the rounds wait for them.
  async mayRead() {
    try {
      await this.login.ready();
      return true;
    } catch (error) {
      this.complain(error);
      return false;
    }
  }

  async listJobs() {
    try {
      await this.showJobs(await fetchJobs());
    } catch (error) {
      this.complain(error);
    }
  }

  complain(error) {
    if (!(error instanceof ApiError)) throw error;
    if (!this.page) showNotice("No connection", `${error.message}. Trying again.`);
  }

  async showJobs(jobs) {
    const asked = new URLSearchParams(location.search).get("job");
    const chosen = asked ?? this.page?.job ?? pickJob(jobs);
    if (chosen === undefined) {
      showNotice("No job yet", "No agent has reported to this balancer. This page waits for one.");
      return;
    }
    this.header.showJobs(jobs, chosen);
    if (this.page) return;
    this.page = new JobPage(chosen, this.header);
    await this.page.open();
  }
}

byId("balancer-url").textContent = new URL(".", document.baseURI).href.replace(/\/$/, "");
new App().run();

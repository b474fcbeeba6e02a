// The page: picks the job, lists the others, and ticks the clock that everything else goes by.

import { ApiError, fetchJobs } from "./api.js";
import { byId, showNotice } from "./dom.js";
import { Header } from "./header.js";
import { JobPage } from "./job.js";

const TICK_MS = 1_000;
const REFRESH_TICKS = 3;
const JOBS_TICKS = 15;

function pickJob(jobs) {
  const newest = [...jobs].sort((a, b) => a.last_report_age_seconds - b.last_report_age_seconds);
  return (newest.find((job) => job.state === "active") ?? newest[0])?.job;
}

async function follow(header) {
  let page = null;
  let ticks = 0;
  const tick = async () => {
    ticks += 1;
    header.showAge();
    if (document.hidden) return;
    if (page && ticks % REFRESH_TICKS === 0) await page.refresh();
    if (page ? ticks % JOBS_TICKS === 1 : ticks % REFRESH_TICKS === 1) await listJobs();
  };
  const listJobs = async () => {
    try {
      const jobs = await fetchJobs();
      const chosen = new URLSearchParams(location.search).get("job") ?? page?.job ?? pickJob(jobs);
      if (chosen === undefined) return showNotice("No job yet", byId("no-job").textContent);
      header.showJobs(jobs, chosen);
      if (!page) {
        page = new JobPage(chosen, header);
        await page.open();
      }
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (!page) showNotice("No connection", `${error.message}. Trying again.`);
    }
  };
  // One tick after the other: a slow balancer is not asked twice at once.
  for (;;) {
    await tick();
    await new Promise((resolve) => setTimeout(resolve, TICK_MS));
  }
}

const header = new Header((job) => location.assign(`?${new URLSearchParams({ job })}`));
byId("balancer-url").textContent = new URL(".", document.baseURI).href.replace(/\/$/, "");
follow(header);

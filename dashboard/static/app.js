// The page: jobs, one job, or two compared, as the URL says; and the clock that all of it goes by.

import { ApiError } from "./api.js";
import { ComparePage } from "./compare_page.js";
import { byId } from "./dom.js";
import { Header } from "./header.js";
import { JobPage } from "./job_page.js";
import { JobsPage } from "./jobs_page.js";
import { Login } from "./login.js";
import { showNotice } from "./notice.js";
import { startTheme } from "./theme.js";
import { view } from "./view.js";

const AGE_MS = 1_000;
const REFRESH_MS = 3_000;

function pageOf(header) {
  if (view.get("a") !== null) return new ComparePage(header);
  const job = view.get("job");
  return job === null ? new JobsPage(header) : new JobPage(job, header);
}

class App {
  constructor() {
    this.header = new Header();
    this.page = pageOf(this.header);
    this.isOpen = false;
    this.login = new Login({
      left: () => this.page.pause(),
      entered: () => this.page.resume(),
    });
    byId("crumb").textContent = this.page.title;
    byId("crumb").hidden = this.page instanceof JobsPage;
  }

  async run() {
    setInterval(() => this.header.show(), AGE_MS);
    // One round after the other, so a slow balancer is not asked twice at once. A fault must not
    // end the rounds, or the page would go on showing old figures.
    for (;;) {
      if (!document.hidden) await this.round().catch(reportError);
      await new Promise((resolve) => setTimeout(resolve, REFRESH_MS));
    }
  }

  async round() {
    if (!(await this.mayRead())) return;
    if (this.isOpen) {
      await this.page.refresh();
      return;
    }
    this.isOpen = true;
    await this.page.open(byId("content"));
  }

  // Who logs in needs time: the rounds wait for them.
  async mayRead() {
    try {
      await this.login.ready();
      return true;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (!this.isOpen) showNotice("No connection", `${error.message}. Trying again.`);
      return false;
    }
  }
}

startTheme(byId("theme"));
byId("balancer-url").textContent = new URL(".", document.baseURI).href.replace(/\/$/, "");
new App().run();

// Logging in: a token once, then a cookie that no script can read. Asked for only where the
// balancer asks, before anything else is fetched and whenever it no longer knows the reader.

import { ApiError, fetchSession, onUnauthorized, sendLogin, sendLogout } from "./api.js";
import { byId, setText } from "./dom.js";

const MAY_READ = ["read", "admin"];
const ONLY_REPORTS = "Your certificate may only report. Log in with a token that may read.";

export class Login {
  // handlers: left() when the reader is out, entered() when in again.
  constructor(handlers) {
    this.handlers = handlers;
    this.session = null;
    this.entered = null;
    this.input = byId("login-token");
    onUnauthorized(() => this.forget());
    byId("login-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit().catch(reportError);
    });
    byId("logout").addEventListener("click", () => this.leave().catch(reportError));
  }

  // Resolves once the reader may read; until then the form stands in for the page.
  async ready() {
    if (this.session === null) this.take(await fetchSession());
    if (this.mayRead()) return;
    if (byId("login").hidden) this.show(this.session.scope ? ONLY_REPORTS : "");
    await new Promise((resolve) => { this.entered = resolve; });
  }

  mayRead() {
    return !this.session.guarded || MAY_READ.includes(this.session.scope);
  }

  take(session) {
    this.session = session;
    // Buttons that only an admin may press are shown to no one else.
    document.body.dataset.admin = !session.guarded || session.scope === "admin" ? "yes" : "no";
    byId("logout").hidden = !session.cookie;
  }

  forget() {
    this.session = null;
    byId("logout").hidden = true;
  }

  show(sentence) {
    this.handlers.left();
    document.body.dataset.login = "asked";
    byId("login").hidden = false;
    setText(byId("login-error"), sentence);
    this.input.focus();
  }

  async submit() {
    const button = byId("login-send");
    button.disabled = true;
    try {
      this.take(await sendLogin(this.input.value.trim()));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.complain(`${error.message}.`);
      return;
    } finally {
      button.disabled = false;
    }
    this.enter();
  }

  complain(sentence) {
    setText(byId("login-error"), sentence);
    this.input.select();
  }

  enter() {
    this.input.value = "";
    delete document.body.dataset.login;
    byId("login").hidden = true;
    this.handlers.entered();
    this.entered?.();
    this.entered = null;
  }

  async leave() {
    try {
      this.take(await sendLogout());
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      return;
    }
    this.show("");
  }
}

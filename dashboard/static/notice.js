// The notice stands in for all panels when there is nothing to show.

import { byId, setText } from "./dom.js";

export function showNotice(title, sentence) {
  setText(byId("notice-title"), title);
  setText(byId("notice-text"), sentence);
  byId("notice").hidden = false;
  byId("content").hidden = true;
}

export function showContent() {
  byId("notice").hidden = true;
  byId("content").hidden = false;
}

// Light or dark: as the system has it, until the reader says otherwise.

const KEY = "libra-theme";
const ORDER = ["auto", "light", "dark"];
const LABELS = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };
const changed = new EventTarget();
const system = window.matchMedia("(prefers-color-scheme: dark)");

// A browser may forbid storage; the choice then lasts as long as the page.
function remember(theme) {
  try {
    if (theme === "auto") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, theme);
  } catch {
    return;
  }
}

function remembered() {
  try {
    const theme = localStorage.getItem(KEY);
    return ORDER.includes(theme) ? theme : "auto";
  } catch {
    return "auto";
  }
}

function apply(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  changed.dispatchEvent(new Event("change"));
}

export function onSchemeChange(callback) {
  changed.addEventListener("change", callback);
  system.addEventListener("change", callback);
}

export function startTheme(button) {
  let theme = remembered();
  const show = () => {
    button.textContent = LABELS[theme];
    apply(theme);
  };
  button.addEventListener("click", () => {
    theme = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
    remember(theme);
    show();
  });
  show();
}

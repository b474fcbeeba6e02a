// The URL holds the whole view: what it says is shown, and what a reader changes is written into it.

const query = () => new URLSearchParams(location.search);

class View extends EventTarget {
  get(name) {
    return query().get(name);
  }

  // A whole number of the URL; null for anything else.
  number(name) {
    const text = this.get(name);
    return text !== null && /^\d{1,15}$/.test(text) ? Number(text) : null;
  }

  has(name, item) {
    return this.list(name).includes(item);
  }

  list(name) {
    return (this.get(name) ?? "").split(",").filter(Boolean);
  }

  toggle(name, item, on) {
    const others = this.list(name).filter((own) => own !== item);
    const items = on ? [...others, item].sort() : others;
    this.set({ [name]: items.length ? items.join(",") : null });
  }

  // changes: {name: value}; null takes a name out.
  set(changes) {
    const next = query();
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === "") next.delete(name);
      else next.set(name, value);
    }
    if (String(next) === String(query())) return;
    history.replaceState(null, "", next.size ? `?${next}` : location.pathname);
    this.dispatchEvent(new CustomEvent("change", { detail: Object.keys(changes) }));
  }

  // Steps to show, both ends included; null is all of them, and then the newest as they come.
  get window() {
    const [from, to] = [this.number("from"), this.number("to")];
    return from === null || to === null || to < from ? null : { from, to };
  }

  set window(steps) {
    this.set({ from: steps?.from ?? null, to: steps?.to ?? null });
  }
}

export const view = new View();

// Where another page is: jobs, one job, or two compared.
export function pageUrl(parameters = {}) {
  const target = new URLSearchParams(parameters);
  return target.size ? `?${target}` : "./";
}

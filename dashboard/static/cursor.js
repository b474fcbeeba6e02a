// One cursor for all charts over steps: whoever moves it says so, and the others follow.

class Cursor extends EventTarget {
  constructor() {
    super();
    this.step = null;
  }

  move(step, by) {
    if (step === this.step) return;
    this.step = step;
    this.dispatchEvent(new CustomEvent("move", { detail: { step, by } }));
  }

  // heard(step) is called when somebody else than `who` has moved it.
  follow(who, heard) {
    this.addEventListener("move", ({ detail }) => {
      if (detail.by !== who) heard(detail.step);
    });
  }
}

export const cursor = new Cursor();

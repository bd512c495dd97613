"use strict";
// A list box of any length: only the rows in sight, and the active one, are in the document.

class VirtualList {
  constructor(box, draw, onOpen) {
    this.box = box;
    this.draw = draw;
    this.onOpen = onOpen;
    this.entries = [];
    this.active = -1;
    this.drawn = new Map();
    this.spacer = document.createElement("div");
    this.spacer.className = "spacer";
    this.spacer.setAttribute("role", "presentation");
    this.empty = document.createElement("p");
    this.empty.className = "none";
    this.empty.textContent = "Nothing fits these filters.";
    box.append(this.spacer);
    box.addEventListener("scroll", () => this.render(), { passive: true });
    box.addEventListener("keydown", (event) => this.key(event));
    box.addEventListener("click", (event) => {
      const item = event.target.closest(".entry");
      if (item) this.go(Number(item.dataset.position), true);
    });
    new ResizeObserver(() => this.render()).observe(box);
  }

  get rowPx() {
    return 3.75 * parseFloat(getComputedStyle(document.documentElement).fontSize);
  }

  set(entries) {
    const before = this.entries[this.active];
    this.entries = entries;
    this.active = before ? entries.findIndex((entry) => entry.left === before.left) : -1;
    for (const item of this.drawn.values()) item.remove();
    this.drawn.clear();
    this.spacer.style.height = `${entries.length * this.rowPx}px`;
    if (entries.length) this.empty.remove();
    else this.box.append(this.empty);
    if (this.box.scrollTop > entries.length * this.rowPx) this.box.scrollTop = 0;
    this.render();
  }

  render() {
    const height = this.rowPx;
    const first = Math.max(0, Math.floor(this.box.scrollTop / height) - 4);
    const last = Math.min(this.entries.length - 1, Math.ceil((this.box.scrollTop + this.box.clientHeight) / height) + 4);
    const wanted = new Set();
    for (let position = first; position <= last; position++) wanted.add(position);
    if (this.active >= 0) wanted.add(this.active);
    for (const [position, item] of this.drawn) {
      if (!wanted.has(position)) {
        item.remove();
        this.drawn.delete(position);
      }
    }
    for (const position of wanted) if (!this.drawn.has(position)) this.add(position, height);
    if (this.active >= 0) this.box.setAttribute("aria-activedescendant", `entry-${this.active}`);
    else this.box.removeAttribute("aria-activedescendant");
  }

  add(position, height) {
    const item = this.draw(this.entries[position]);
    item.classList.add("entry");
    item.id = `entry-${position}`;
    item.dataset.position = position;
    item.setAttribute("role", "option");
    item.setAttribute("aria-selected", String(position === this.active));
    item.setAttribute("aria-setsize", this.entries.length);
    item.setAttribute("aria-posinset", position + 1);
    item.style.top = `${position * height}px`;
    this.spacer.append(item);
    this.drawn.set(position, item);
  }

  /** Make a row the active one and bring it into sight. */
  activate(position) {
    const old = this.drawn.get(this.active);
    if (old) old.setAttribute("aria-selected", "false");
    this.active = position;
    const top = position * this.rowPx;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    const bottom = top + this.rowPx - this.box.clientHeight;
    if (bottom > this.box.scrollTop) this.box.scrollTop = bottom;
    this.render();
    this.drawn.get(position)?.setAttribute("aria-selected", "true");
  }

  go(position, isOpened) {
    if (position < 0 || position >= this.entries.length) return;
    this.activate(position);
    this.onOpen(this.entries[position], isOpened);
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const page = Math.max(1, Math.floor(this.box.clientHeight / this.rowPx) - 1);
    const last = this.entries.length - 1;
    const moves = {
      ArrowDown: this.active + 1, j: this.active + 1, ArrowUp: this.active - 1, k: this.active - 1,
      PageDown: this.active + page, PageUp: this.active - page, Home: 0, End: last,
    };
    if (event.key in moves) {
      event.preventDefault();
      this.go(Math.min(last, Math.max(0, moves[event.key])), false);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.go(this.active, true);
    }
  }
}

// The timing of one lane as a table with bars: a row for each turn of the model and each sub-query.
// Lanes that are compared are drawn to the same scale, so their bars can be held against each other.

const MOST_TICKS = 5;

/** Seconds between two marks of an axis: 1, 2 or 5 times a power of ten, at most `MOST_TICKS` of them. */
function tickStep(wholeS) {
  const power = 10 ** Math.floor(Math.log10(wholeS / MOST_TICKS));
  return [1, 2, 5, 10].map((times) => times * power).find((step) => wholeS / step <= MOST_TICKS);
}

/** An element with a role said aloud: a browser forgets that of a table's part whose layout is changed. */
function part(name, role, className, text) {
  const made = document.createElement(name);
  made.setAttribute("role", role);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

export class Waterfall {
  constructor() {
    this.rows = [];
    this.step = 0;
    this.root = document.createElement("div");
    this.root.className = "timing";
    this.table = part("table", "table", "waterfall");
    const caption = document.createElement("caption");
    caption.textContent = "Timing";
    const head = part("tr", "row");
    this.axis = part("th", "columnheader", "axis");
    this.axis.setAttribute("aria-label", "When, in seconds");
    head.append(part("th", "columnheader", "", "What"), this.axis, part("th", "columnheader", "length", "Length"));
    const top = part("thead", "rowgroup");
    top.append(head);
    this.body = part("tbody", "rowgroup");
    this.table.append(caption, top, this.body);
    this.root.append(this.table);
  }

  /** A bar that starts now and grows until it is ended. */
  start(kind, label, startS) {
    const row = part("tr", "row", `${kind}-row`);
    const name = part("th", "rowheader", "", label);
    name.title = label;
    const track = part("td", "cell", "track");
    const bar = document.createElement("div");
    bar.className = `bar ${kind}`;
    const when = document.createElement("span");
    when.className = "unseen";
    track.append(bar, when);
    const length = part("td", "cell", "length");
    row.append(name, track, length);
    this.body.append(row);
    const item = { startS, endS: null, seenS: null, bar, when, length };
    this.rows.push(item);
    return item;
  }

  /** It was still going on at this time; without such news a bar grows with the clock. */
  seen(item, timeS) {
    item.seenS = timeS;
  }

  end(item, startS, endS) {
    item.startS = startS;
    item.endS = endS;
  }

  draw(nowS, scaleS) {
    const wholeS = Math.max(scaleS, 0.001);
    this.drawAxis(wholeS);
    for (const row of this.rows) {
      const endS = row.endS ?? row.seenS ?? nowS;
      // Through the style object, which the page's content policy allows; a style attribute it does not.
      row.bar.style.left = `${(100 * row.startS) / wholeS}%`;
      row.bar.style.width = `${(100 * Math.max(0, endS - row.startS)) / wholeS}%`;
      row.bar.classList.toggle("running", row.endS === null);
      row.length.textContent = `${Math.max(0, endS - row.startS).toFixed(2)} s`;
      row.when.textContent = `from ${row.startS.toFixed(2)} s to ${endS.toFixed(2)} s`;
    }
  }

  drawAxis(wholeS) {
    const step = tickStep(wholeS);
    if (step !== this.step) {
      this.step = step;
      const digits = Math.max(0, -Math.floor(Math.log10(step)));
      const marks = Array.from({ length: MOST_TICKS }, (_, n) => {
        const mark = document.createElement("span");
        mark.textContent = n ? (n * step).toFixed(digits) : "0 s";
        return mark;
      });
      this.axis.replaceChildren(...marks);
    }
    const share = (100 * step) / wholeS;
    this.table.style.setProperty("--tick", `${share}%`);
    [...this.axis.children].forEach((mark, n) => {
      mark.style.left = `${n * share}%`;
      mark.hidden = n * share > 97; // it would stand beside the bars
    });
  }
}

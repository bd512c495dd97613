// The timing of one lane as a table with bars: a row for each turn of the model and each sub-query.
// Lanes that are compared are drawn to the same scale, so their bars can be held against each other.

export class Waterfall {
  constructor() {
    this.rows = [];
    this.table = document.createElement("table");
    this.table.className = "waterfall";
    const caption = this.table.createCaption();
    caption.textContent = "Timing";
    const head = this.table.createTHead().insertRow();
    for (const title of ["What", "When", "Seconds"]) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = title;
      head.append(cell);
    }
    this.body = this.table.createTBody();
  }

  /** A bar that starts now and grows until it is ended. */
  start(kind, label, startS) {
    const row = this.body.insertRow();
    const name = document.createElement("th");
    name.scope = "row";
    name.textContent = label;
    const track = row.insertCell();
    track.className = "track";
    const bar = document.createElement("div");
    bar.className = `bar ${kind}`;
    track.append(bar);
    row.prepend(name);
    const item = { kind, label, startS, endS: null, seenS: null, bar, cell: row.insertCell() };
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
    const whole = Math.max(scaleS, 0.001);
    for (const row of this.rows) {
      const endS = row.endS ?? row.seenS ?? nowS;
      // Through the style object, which the page's content policy allows; a style attribute it does not.
      row.bar.style.left = `${(100 * row.startS) / whole}%`;
      row.bar.style.width = `${(100 * Math.max(0, endS - row.startS)) / whole}%`;
      row.bar.classList.toggle("running", row.endS === null);
      row.cell.textContent = `${row.startS.toFixed(2)} to ${endS.toFixed(2)}`;
    }
  }
}

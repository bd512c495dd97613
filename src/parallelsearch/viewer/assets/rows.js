"use strict";
// Rows of the list: named, filtered, sorted, and paired with those of another run. Values in, values out.

function namedRow(values, fields, number) {
  const row = { number };
  for (let i = 0; i < fields.length; i++) row[fields[i]] = values[i];
  row.haystack = [row.question, row.answer, row.golden, row.queries, row.id].filter(Boolean).join("\n").toLowerCase();
  return row;
}

const keyOf = (row) => row.id || row.question;
const phasedKeyOf = (row) => `${row.phase}\n${keyOf(row)}`;

/** What the list shows: rows of one run, or pairs of rows with the same key. */
function entriesOf(left, right, key) {
  if (!right) return left.map((row) => ({ left: row, right: null }));
  const waiting = new Map();
  for (const row of right) {
    if (waiting.has(key(row))) waiting.get(key(row)).push(row);
    else waiting.set(key(row), [row]);
  }
  const taken = new Map();
  const pairs = [];
  for (const row of left) {
    // Several samples of one question meet in their order.
    const count = taken.get(key(row)) || 0;
    const other = waiting.get(key(row))?.[count];
    if (other) pairs.push({ left: row, right: other });
    taken.set(key(row), count + 1);
  }
  return pairs;
}

const CHOICES = ["kind", "type", "dataset", "stop", "error_class", "phase"];
const OUTCOMES = { right: true, wrong: false, unknown: null };
const COMPARED = {
  differ: (a, b) => a !== b,
  left: (a, b) => a && !b,
  right: (a, b) => !a && b,
  both: (a, b) => a && b,
  neither: (a, b) => !a && !b,
};

function fits(entry, filters) {
  const row = entry.left;
  if (filters.outcome && row.right !== OUTCOMES[filters.outcome]) return false;
  for (const name of CHOICES) if (filters[name] && row[name] !== filters[name]) return false;
  if (filters.split && row.split !== (filters.split === "yes")) return false;
  if (filters.rewardMin !== null && !(row.reward !== null && row.reward >= filters.rewardMin)) return false;
  if (filters.rewardMax !== null && !(row.reward !== null && row.reward <= filters.rewardMax)) return false;
  if (entry.right && filters.compared && !COMPARED[filters.compared](row.right === true, entry.right.right === true)) return false;
  if (filters.text && !row.haystack.includes(filters.text) && !entry.right?.haystack.includes(filters.text)) return false;
  return true;
}

// Rows without a value come last, whichever way it goes.
const down = (name) => (a, b) => (b.left[name] ?? -Infinity) - (a.left[name] ?? -Infinity) || 0;
const up = (name) => (a, b) => (a.left[name] ?? Infinity) - (b.left[name] ?? Infinity) || 0;
const ORDERS = {
  file: null,
  "reward-down": down("reward"),
  "reward-up": up("reward"),
  "f1-up": up("f1"),
  slow: down("elapsed_s"),
  calls: down("calls"),
  subqueries: down("subqueries"),
  question: (a, b) => (a.left.question < b.left.question ? -1 : a.left.question > b.left.question ? 1 : 0),
};

function chosen(entries, filters, order) {
  const kept = entries.filter((entry) => fits(entry, filters));
  return ORDERS[order] ? kept.sort(ORDERS[order]) : kept;
}

/** How often each value occurs, most frequent first. */
function counts(rows, name) {
  const found = new Map();
  for (const row of rows) {
    const value = row[name];
    if (value !== null && value !== undefined && value !== "") found.set(value, (found.get(value) || 0) + 1);
  }
  return [...found].sort((a, b) => b[1] - a[1]);
}

function stepsOf(rows) {
  return [...new Set(rows.map((row) => row.step).filter((step) => step !== null))].sort((a, b) => a - b);
}

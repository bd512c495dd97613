"use strict";
// Ties it together: runs, steps and filters decide the entries; the list shows them; one entry is open.

const byId = (id) => document.getElementById(id);
const source = openSource();
const state = { head: null, rows: [], left: 0, right: -1, steps: { left: null, right: null }, open: null, ticket: 0 };
const list = new VirtualList(byId("list"), drawEntry, openEntry);
const steppers = { left: new Stepper("left"), right: new Stepper("right") };
const ERROR_WORDS = {
  failed: "the policy could not go on", no_answer: "no answer, or an empty one",
  should_have_split: "evidence missing, first round not split though it should be",
  should_not_have_split: "evidence missing, first round split though it should not be",
  not_retrieved: "the evidence was not found", aggregated_wrong: "all evidence found by a split, put together wrongly",
  misread: "all evidence found, read wrongly", undetermined: "cannot be told",
};

// ---- one step of a training run ----------------------------------------------------------------------------------------

function Stepper(side) {
  const box = byId(`stepper-${side}`);
  const slider = element("input");
  const output = element("output");
  const all = element("input");
  const figures = element("span", "figures-line");
  slider.type = "range";
  slider.id = `step-${side}`;
  slider.min = "0";
  all.type = "checkbox";
  all.checked = true;
  const name = element("label", "", "Step");
  name.htmlFor = slider.id;
  box.append(name, slider, output, element("label", "", all, "every step"), figures);
  const self = { steps: [], run: null };

  const show = () => {
    const step = all.checked ? null : self.steps[slider.value];
    state.steps[side] = step ?? null;
    output.textContent = step === null ? "every step" : `step ${step}`;
    slider.setAttribute("aria-valuetext", output.textContent);
    const known = step === null ? {} : self.run.metrics[step] || {};
    figures.textContent = Object.entries(known).map(([metric, value]) => `${metric} ${figure(value)}`).join(" · ");
  };
  slider.addEventListener("input", () => {
    all.checked = false;
    show();
    update();
    follow();
  });
  all.addEventListener("change", () => {
    show();
    update();
  });
  /** Fit to a run; `chosen` is "first", "last" or null for every step. */
  self.fit = (run, rows, chosen) => {
    self.run = run;
    self.steps = run ? stepsOf(rows) : [];
    box.hidden = self.steps.length < 2;
    slider.max = String(Math.max(0, self.steps.length - 1));
    slider.value = chosen === "first" ? "0" : slider.max;
    all.checked = chosen === null || box.hidden;
    show();
  };
  return self;
}

// ---- the list ----------------------------------------------------------------------------------------------------------

function drawEntry(entry) {
  const { left, right } = entry;
  const item = element("div", source.has(state.left, left.number) ? "" : "absent", element("div", "", left.question));
  const meta = element("div", "meta", outcome(left));
  if (right) meta.append(" | ", outcome(right));
  const words = [left.kind, left.split ? "split" : null, left.reward === null ? null : `reward ${figure(left.reward)}`];
  if (left.step !== null) words.push(`step ${left.step}`);
  if (left.error_class) words.push(left.error_class.replaceAll("_", " "));
  if (left.stop && left.stop !== "answer") words.push(`stopped: ${left.stop}`);
  if (left.elapsed_s !== null) words.push(seconds(left.elapsed_s));
  if (!source.has(state.left, left.number)) words.push("left out of this file");
  meta.append(words.filter(Boolean).map((word) => ` · ${word}`).join(""));
  item.append(meta);
  return item;
}

function readFilters() {
  const filters = {};
  for (const id of ["outcome", "compared", "split", ...CHOICES]) filters[id] = byId(id).value;
  filters.text = byId("text").value.trim().toLowerCase();
  for (const [name, id] of [["rewardMin", "reward-min"], ["rewardMax", "reward-max"]]) {
    filters[name] = byId(id).value === "" ? null : Number(byId(id).value);
  }
  return filters;
}

function rowsAt(run, step) {
  const rows = state.rows[run] || [];
  return step === null ? rows : rows.filter((row) => row.step === step);
}

function update() {
  const left = rowsAt(state.left, state.steps.left);
  // Two steps of one run: samples of training meet samples of training. Two runs: the question alone decides.
  const key = state.left === state.right ? phasedKeyOf : keyOf;
  const entries = entriesOf(left, state.right < 0 ? null : rowsAt(state.right, state.steps.right), key);
  const kept = chosen(entries, readFilters(), byId("order").value);
  list.set(kept);
  const what = state.right < 0 ? "trajectories" : "questions in both";
  byId("status").textContent = `${kept.length.toLocaleString("en")} of ${entries.length.toLocaleString("en")} ${what}`;
  drawOverview(left);
}

function fillChoices() {
  const rows = state.rows[state.left] || [];
  for (const name of CHOICES) {
    const select = byId(name);
    const before = select.value;
    const found = counts(rows, name);
    if (name === "error_class") found.sort((a, b) => state.head.error_classes.indexOf(a[0]) - state.head.error_classes.indexOf(b[0]));
    const options = [new Option("all", "")];
    for (const [value, count] of found.slice(0, 500)) options.push(new Option(`${String(value).replaceAll("_", " ")} (${count.toLocaleString("en")})`, value));
    select.replaceChildren(...options);
    select.value = found.some(([value]) => value === before) ? before : "";
    select.parentElement.hidden = found.length === 0 || (found.length === 1 && name !== "error_class");
  }
  const hasRewards = rows.some((row) => row.reward !== null);
  byId("reward-min").closest(".range").hidden = !hasRewards;
}

// ---- overview ----------------------------------------------------------------------------------------------------------

const isCount = (value) => /^([\d.,]+( %)?|-)$/.test(value);

function countTable(title, heads, lines) {
  const table = element("table", "");
  table.createCaption().textContent = title;
  const top = table.createTHead().insertRow();
  heads.forEach((head, column) => {
    const cell = element("th", lines.length && isCount(lines[0][column]) ? "count" : "", head);
    cell.scope = "col";
    top.append(cell);
  });
  const body = table.createTBody();
  for (const [first, ...rest] of lines) {
    const row = body.insertRow();
    const name = element("th", "", first);
    name.scope = "row";
    row.append(name, ...rest.map((value) => element("td", isCount(value) ? "count" : "", value)));
  }
  return table;
}

const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "-");

function drawOverview(rows) {
  if (!byId("overview").open) return;
  const box = byId("overview").querySelector("div");
  const judged = rows.filter((row) => row.right !== null);
  const kinds = [["all", rows], ...counts(rows, "kind").map(([kind]) => [kind, rows.filter((row) => row.kind === kind)])];
  const mean = (group, name) => (group.length ? (group.reduce((sum, row) => sum + (row[name] ?? 0), 0) / group.length).toFixed(2) : "-");
  const lines = kinds.map(([kind, group]) => {
    const known = group.filter((row) => row.right !== null);
    return [kind, group.length.toLocaleString("en"), percent(known.filter((row) => row.right).length, known.length),
      percent(group.filter((row) => row.split).length, group.length), mean(group, "calls"), mean(group, "rounds")];
  });
  const errors = counts(judged, "error_class");
  errors.sort((a, b) => state.head.error_classes.indexOf(a[0]) - state.head.error_classes.indexOf(b[0]));
  const errorLines = errors.map(([name, count]) => {
    const button = element("button", "", name.replaceAll("_", " "));
    button.type = "button";
    button.addEventListener("click", () => {
      byId("error_class").value = name;
      update();
    });
    return [button, count.toLocaleString("en"), percent(count, judged.length), ERROR_WORDS[name] ?? ""];
  });
  box.replaceChildren(countTable("By kind", ["Kind", "n", "Right", "Split", "LLM calls", "Rounds"], lines));
  if (errors.length) box.append(countTable("Error classes of wrong answers", ["Class", "n", "Of judged", "Meaning"], errorLines));
}

// ---- the opened entry --------------------------------------------------------------------------------------------------

async function openEntry(entry, isFocused) {
  const ticket = ++state.ticket;
  const runs = [[state.left, entry.left], ...(entry.right ? [[state.right, entry.right]] : [])];
  state.open = entry;
  const detail = byId("detail");
  try {
    const records = await Promise.all(runs.map(([run, row]) => source.record(run, row.number)));
    if (ticket !== state.ticket) return; // another one was opened meanwhile
    const scaleS = Math.max(0.001, ...records.map(lastS));
    const sides = element("div", records.length > 1 ? "sides two" : "sides");
    records.forEach((record, i) => sides.append(trajectoryView(record, runs[i][1], state.head.runs[runs[i][0]].name, scaleS)));
    const back = element("a", "back", "Back to the list");
    back.href = "#list";
    detail.replaceChildren(back, sides);
  } catch (error) {
    if (ticket === state.ticket) detail.replaceChildren(element("p", "wrong", error.message));
  }
  if (isFocused && ticket === state.ticket) {
    detail.focus({ preventScroll: true });
    if (matchMedia("(max-width: 60rem)").matches) detail.scrollIntoView();
  }
}

/** After a step of the slider: the same question at that step, if it was sampled there. */
function follow() {
  if (!state.open) return;
  const { left } = state.open;
  const position = list.entries.findIndex((entry) => phasedKeyOf(entry.left) === phasedKeyOf(left));
  if (position >= 0) list.go(position, false);
  else byId("status").textContent += "; the opened question was not sampled at this step";
}

/** A link to one trajectory, as a report has them: `#id=...`. */
function openLinked() {
  const id = new URLSearchParams(location.hash.slice(1)).get("id");
  if (id === null) return;
  const position = list.entries.findIndex((entry) => entry.left.id === id);
  if (position >= 0) list.go(position, true);
  else byId("status").textContent += `; the list has no trajectory with the id ${id}`;
}

// ---- starting ----------------------------------------------------------------------------------------------------------

function chooseRuns() {
  state.left = Number(byId("run").value);
  state.right = Number(byId("beside").value);
  byId("compared-label").hidden = state.right < 0;
  if (state.right < 0) byId("compared").value = "";
  const isSame = state.left === state.right;
  steppers.left.fit(state.head.runs[state.left], state.rows[state.left] || [], state.right < 0 ? null : isSame ? "first" : "last");
  steppers.right.fit(state.right < 0 ? null : state.head.runs[state.right], state.rows[state.right] || [], "last");
  fillChoices();
  update();
}

function fillRuns() {
  const runs = state.head.runs;
  const before = [byId("run").value, byId("beside").value];
  byId("run").replaceChildren(...runs.map((run, number) => new Option(run.name, number)));
  const others = runs.map((run, number) => [run, number]).filter(([, number]) => runs.length > 1 || stepsOf(state.rows[number] || []).length > 1);
  byId("beside").replaceChildren(new Option("nothing", -1), ...others.map(([run, number]) => new Option(run.name, number)));
  if (before[0]) [byId("run").value, byId("beside").value] = before;
  byId("beside").parentElement.hidden = others.length === 0;
}

function showNotes() {
  const notes = state.head.runs.flatMap((run) => run.notes.map((note) => (state.head.runs.length > 1 ? `${run.name}: ${note}` : note)));
  if (state.head.left_out) notes.unshift(state.head.left_out);
  const box = byId("notes");
  box.hidden = notes.length === 0;
  box.open = Boolean(state.head.left_out);
  box.querySelector("summary").textContent = counted(notes.length, "note about these runs", "notes about these runs");
  box.querySelector("ul").replaceChildren(...notes.map((note) => element("li", "", note)));
}

/** Error classes come after the list: they need every wrong trajectory looked at. */
async function judge() {
  const places = ["f1", "error_class"].map((name) => [name, state.head.fields.indexOf(name)]);
  for (let run = 0; run < state.rows.length; run++) {
    const known = state.rows[run];
    const rows = await source.judged(run, known.length);
    rows?.forEach((values, number) => places.forEach(([name, place]) => (known[number][name] = values[place])));
  }
  if (source instanceof EmbeddedSource) return;
  const head = await source.runs(); // notes are complete now, too
  state.head.runs.forEach((run, number) => Object.assign(run, { notes: head.runs[number].notes }));
  showNotes();
  fillChoices();
  update();
}

async function load() {
  byId("problem").hidden = true;
  try {
    state.head = await source.runs();
    byId("token-form").hidden = true;
    fillRuns();
    showNotes();
    let drawnMs = -Infinity;
    for (let run = 0; run < state.head.runs.length; run++) {
      state.rows[run] = [];
      await source.rows(run, (rows, isDone, share) => {
        const known = state.rows[run];
        for (const values of rows) known.push(namedRow(values, state.head.fields, known.length));
        const sum = state.rows.reduce((total, one) => total + one.length, 0);
        byId("about").textContent = `${counted(sum, "trajectory", "trajectories")}${isDone ? "" : `, reading (${Math.floor(100 * share)} %)`}`;
        if (run === state.left && rows.length && performance.now() - drawnMs > 400) {
          update(); // not for every piece: drawing competes with reading
          drawnMs = performance.now();
        }
      });
    }
    fillRuns();
    chooseRuns();
    openLinked();
    document.body.dataset.state = "ready";
    await judge();
    document.body.dataset.state = "judged";
  } catch (error) {
    if (error instanceof NeedsToken) byId("token-form").hidden = false;
    byId("about").textContent = "";
    byId("problem").textContent = error.message;
    byId("problem").hidden = false;
  }
}

byId("run").addEventListener("change", chooseRuns);
byId("beside").addEventListener("change", chooseRuns);
addEventListener("hashchange", openLinked);
const form = byId("filters").querySelector("form");
form.addEventListener("input", update);
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", () => setTimeout(update));
byId("overview").addEventListener("toggle", () => state.head && drawOverview(rowsAt(state.left, state.steps.left)));
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  source.token = byId("token").value.trim();
  load();
});
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches("input, select, textarea");
  const isWriting = event.target.matches("input:not([type=checkbox], [type=radio]), textarea");
  if ((event.key === "j" || event.key === "k") && !isWriting && !event.defaultPrevented) {
    list.key(event); // wherever the focus is: after a run was chosen, or in the open entry
    return;
  }
  if (event.key === "/" && !isTyping) {
    event.preventDefault();
    byId("filters").open = true;
    byId("text").focus();
  } else if (event.key === "Escape" && (isTyping || byId("detail").contains(event.target))) {
    byId("list").focus();
  }
});
if (matchMedia("(max-width: 34rem)").matches) byId("filters").open = false;
load();

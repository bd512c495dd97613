"use strict";
// One trajectory, opened. Everything from a run enters the page as text, never as markup.

function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children.filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

const counted = (n, one, many) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
const seconds = (value) => `${value.toFixed(value < 1 ? 3 : 2)} s`;
const figure = (value) => (Math.round(value * 1000) / 1000).toString();
const OUTCOME_WORDS = new Map([[true, "✓ right"], [false, "✗ wrong"], [null, "not judged"]]);

function outcome(row) {
  return element("span", row.right === true ? "right" : row.right === false ? "wrong" : "", OUTCOME_WORDS.get(row.right));
}

/** A link to a page of the web, or plain text for every other address. */
function safeLink(text, url) {
  let parsed = null;
  try {
    parsed = url ? new URL(url) : null;
  } catch {
    parsed = null;
  }
  if (!parsed || !["http:", "https:"].includes(parsed.protocol)) return element("span", "", text);
  const anchor = element("a", "", text);
  anchor.href = parsed.href;
  anchor.rel = "noopener noreferrer nofollow";
  anchor.target = "_blank";
  return anchor;
}

function facts(pairs) {
  const list = element("dl", "facts");
  for (const [name, value] of pairs) {
    if (value === null || value === undefined || value === "") continue;
    list.append(element("div", "", element("dt", "", name), element("dd", "", value)));
  }
  return list;
}

/** A part of a table with its role said aloud: a browser forgets that of a part whose layout is changed. */
function part(name, role, className, ...children) {
  const made = element(name, className, ...children);
  made.setAttribute("role", role);
  return made;
}

function barTable(title, heads) {
  const head = part("tr", "row", "", ...heads.map((text) => part("th", "columnheader", "", text)));
  const body = part("tbody", "rowgroup", "");
  const table = part("table", "table", "bars", element("caption", "", title), part("thead", "rowgroup", "", head), body);
  return { root: element("div", "bars-box", table), add(label, bars, text) {
    const name = part("th", "rowheader", "", label);
    name.title = label;
    body.append(part("tr", "row", "", name, part("td", "cell", "track", ...bars), part("td", "cell", "", text)));
  } };
}

function bar(kind, from, to) {
  const made = element("div", `bar ${kind}`);
  // Through the style object, which the content policy allows; a style attribute it does not.
  made.style.left = `${100 * from}%`;
  made.style.width = `${100 * Math.max(0, to - from)}%`;
  return made;
}

function rewardTable(rewards) {
  // The components as the record has them, their sum last.
  const names = Object.keys(rewards).filter((name) => typeof rewards[name] === "number");
  names.sort((one, other) => (one === "total") - (other === "total"));
  const low = Math.min(0, ...names.map((name) => rewards[name]));
  const high = Math.max(0.001, ...names.map((name) => rewards[name]));
  const at = (value) => (value - low) / (high - low);
  const { root, add } = barTable("Reward", ["Component", "Share", "Value"]);
  for (const name of names) {
    const value = rewards[name];
    const zero = element("div", "zero");
    zero.style.left = `${100 * at(0)}%`;
    add(name.replace("_", " "), [zero, bar(value < 0 ? "minus" : "model", at(Math.min(0, value)), at(Math.max(0, value)))], figure(value));
  }
  return root;
}

function lastS(record) {
  const ends = (record.turns || []).flatMap((turn) => [turn.start_s + turn.generate_s, ...turn.queries.map((query) => query.end_s)]);
  return Math.max(0, record.elapsed_s || 0, ...ends.filter(Number.isFinite));
}

function waterfall(record, scaleS) {
  const { root, add } = barTable("Timing", ["What", "When", "Seconds"]);
  const digits = scaleS < 1 ? 3 : 2;
  const line = (kind, label, startS, endS) =>
    add(label, [bar(kind, startS / scaleS, endS / scaleS)], `${startS.toFixed(digits)} to ${endS.toFixed(digits)}`);
  record.turns.forEach((turn, number) => {
    line("model", `turn ${number + 1}: model`, turn.start_s, turn.start_s + turn.generate_s);
    for (const query of turn.queries) line("search", query.text, query.start_s, query.end_s);
  });
  return root;
}

// Where a hit stood before the model: "shown as [2]", "shown as [2], cut", or nothing where it was only referred to again.
function shownAs(shown) {
  return shown ? ` shown as [${shown.number}]${shown.is_cut ? ", cut" : ""}` : "";
}

function queryCard(query, goldTitles, number, shown) {
  const state = query.error ? `failed: ${query.error}` : `${counted(query.hits.length, "hit", "hits")}, ${seconds(Math.max(0, query.end_s - query.start_s))}${query.cached ? ", from the cache" : ""}`;
  const card = element("div", query.error ? "query failed" : "query", element("h4", "", query.text), element("p", "soft", state));
  card.setAttribute("role", "group");
  card.setAttribute("aria-label", `Sub-query ${number}`);
  const hits = element("ol", "hits");
  for (const hit of query.hits) {
    const title = element("summary", "", `${hit.rank ?? ""}. ${hit.title || hit.id || "(no title)"} `);
    if (typeof hit.score === "number") title.append(element("span", "soft", figure(hit.score)));
    title.append(element("span", "soft", shownAs(shown.get(hit.id))));
    if (goldTitles.has(hit.title)) title.append(element("span", "gold", " gold"));
    const body = element("details", "", title, element("p", "", hit.text));
    if (hit.url) body.append(safeLink(hit.url, hit.url));
    const known = Object.entries(hit.metadata || {}).map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`);
    if (known.length) body.append(element("p", "soft", known.join(", ")));
    hits.append(element("li", "", body));
  }
  if (query.hits.length) card.append(hits);
  return card;
}

function segmentText(segment) {
  const restored = segment.restored || "";
  const text = segment.text.slice(0, segment.text.length - restored.length);
  const pre = element("pre", "");
  for (const piece of text.split(/(<\/?[a-z]{3,20}>)/)) pre.append(/^<\/?[a-z]{3,20}>$/.test(piece) ? element("span", "tag", piece) : piece);
  if (restored) {
    const mark = element("span", "restored", restored);
    mark.title = "a stop string that the server had stripped: put back, not trained on";
    pre.append(mark);
  }
  return pre;
}

function segmentBlock(segment, turn, number) {
  const notes = [segment.author === "model" ? `turn ${number}, model` : segment.author, segment.is_trained ? "trained on" : "not trained on"];
  if (segment.num_tokens !== undefined) notes.push(counted(segment.num_tokens, "token", "tokens"));
  if (segment.restored) notes.push("the marked stop string was restored and is not trained on");
  if (typeof segment.mean_logprob === "number") notes.push(`mean log-probability ${figure(segment.mean_logprob)}`);
  if (turn?.finish && turn.finish !== "stop") notes.push(`finish: ${turn.finish}`);
  if (turn?.problems?.length) notes.push(`form: ${turn.problems.join(", ")}`);
  if (turn?.dropped_queries?.length) notes.push(`dropped: ${turn.dropped_queries.join(" ## ")}`);
  const block = element("div", `segment ${segment.author}`);
  const isFolded = segment.author === "prompt" || segment.author === "search";
  if (isFolded) block.append(element("details", "", element("summary", "label", notes.join(" · ")), segmentText(segment)));
  else block.append(element("p", "label", notes.join(" · ")), segmentText(segment));
  return block;
}

function legend(record) {
  const share = record.has_token_ids ? ` (${counted(record.num_trained_tokens, "token", "tokens")} of ${record.num_response_tokens.toLocaleString("en")})` : "";
  const list = element("ul", "legend",
    element("li", "", element("span", "swatch model"), `trained on: what the model wrote${share}`),
    element("li", "", element("span", "swatch search"), "not trained on: prompt, search results, notices"));
  if (record.segments.some((segment) => segment.restored)) {
    list.append(element("li", "", element("span", "restored", "stop"), " stop string that was put back, not trained on"));
  }
  return list;
}

function queryGrid(turn, goldTitles) {
  const grid = element("div", "queries");
  turn.queries.forEach((query, number) => {
    const shown = new Map((turn.shown || []).filter((one) => one.query === number).map((one) => [one.id, one]));
    grid.append(queryCard(query, goldTitles, number + 1, shown));
  });
  return grid;
}

function settingsBlock(record) {
  const used = {};
  for (const name of ["policy", "sampling", "search", "limits"]) if (record[name]) used[name] = record[name];
  if (!Object.keys(used).length) return null;
  return element("details", "", element("summary", "", "How it was made"), element("pre", "soft", JSON.stringify(used, null, 2)));
}

/** Another model that read the passages and answered. */
function reading(read) {
  return [["Read by", read.policy.model || read.policy.kind || "another model"], ["The policy's own answer", read.own_answer],
    ["It failed", read.error], ["Reading", seconds(read.generate_s || 0)]];
}

/** The whole of one trajectory. `scaleS` is shared by trajectories that stand side by side. */
function trajectoryView(record, row, runName, scaleS) {
  const root = element("article", "trajectory");
  root.setAttribute("aria-label", `${runName}${row.step === null ? "" : `, step ${row.step}`}`);
  root.append(element("p", "soft", `${runName}${row.step === null ? "" : `, step ${row.step}`}${row.phase ? ` (${row.phase})` : ""}`));
  root.append(element("h2", "", record.question));
  const judged = facts([
    ["Outcome", outcome(row)], ["Answer", record.written ? "a text, below" : record.answer ?? "(none)"], ["Golden answers", (record.golden_answers || []).join(" | ")],
    ["Error class", row.error_class?.replaceAll("_", " ")],
  ]);
  judged.classList.add("judged");
  const text = record.written && record.answer ? element("p", "text", record.answer) : null;
  root.append(judged, ...(text ? [text] : []), facts([
    ["Kind", record.kind], ["Type", record.type], ["Data set", record.dataset], ["Stopped by", record.stop], ["LLM calls", record.num_llm_calls], ["Rounds", record.num_searches], ["Sub-queries", record.num_subqueries],
    ["Clock", typeof record.elapsed_s === "number" ? seconds(record.elapsed_s) : null], ["F1", row.f1 === null ? null : figure(row.f1)],
    ["Gold found", typeof record.gold_recall === "number" ? `${Math.round(100 * record.gold_recall)} %` : null], ["Sample", record.sample], ["Id", record.id],
  ]));
  if (record.reading) root.append(facts(reading(record.reading)));
  if (record.error) root.append(element("p", "wrong", record.error));
  if (record.rewards) root.append(rewardTable(record.rewards));
  if (lastS(record) > 0 && record.turns.length) root.append(waterfall(record, scaleS));
  root.append(element("h3", "", "What happened"), legend(record));
  const goldTitles = new Set(record.supporting_titles || []);
  let number = 0;
  for (const segment of record.segments) {
    const turn = segment.author === "model" ? record.turns[number++] : null;
    root.append(segmentBlock(segment, turn, number));
    if (turn?.queries.length) root.append(queryGrid(turn, goldTitles));
  }
  for (const turn of record.turns.slice(number)) if (turn.queries.length) root.append(queryGrid(turn, goldTitles));
  const settings = settingsBlock(record);
  if (settings) root.append(settings);
  return root;
}

// One way of answering a question, drawn while it happens. Everything that comes from outside (question, thought,
// passages, answer) enters the page as text, never as markup.

import { rendered } from "./markdown.js";
import { Waterfall } from "./waterfall.js";

export function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

/** A link to a page of the web, or plain text for every other address. */
export function link(text, url) {
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

/** An answer, with the marks that chat models put into theirs: what stands between `**` is bold, a list has bullets. */
export function worded(text) {
  const words = element("p", text.length > 120 || text.includes("\n") ? "answer-text long" : "answer-text");
  const parts = text.replace(/^( *)[-*] /gm, "$1• ").split(/\*\*(?=\S)(.+?)(?<=\S)\*\*/);
  words.append(...parts.map((part, number) => (number % 2 ? element("strong", "", part) : part)));
  return words;
}

const seconds = (value) => `${value.toFixed(2)} s`;
export const counted = (n, one, many) => `${n} ${n === 1 ? one : many}`;
const STATES = "has what it states";
const BASES = { cited: "named by the answer", contains_answer: "holds the answer's words", about_part: "about a thing asked for" };
const readBy = ({ model, own_answer: own, error }) =>
  error ? `${model} was to read and answer, but failed (${error}); this is the policy's own answer.` : `Read by ${model}. The policy's own answer: ${own || "none"}`;
let numLanes = 0;

export class Lane {
  constructor(title, question, announce) {
    this.title = title;
    this.question = question;
    this.announce = announce;
    this.turns = new Map();
    this.queries = new Map();
    this.toAnnounce = [];
    this.counts = { calls: 0, searches: 0, subqueries: 0 };
    this.startedMs = performance.now();
    this.elapsedS = null;
    this.summary = null;
    this.waterfall = new Waterfall();
    this.build();
  }

  build() {
    const id = `lane-${++numLanes}`;
    this.root = element("article", "lane");
    this.id = id;
    this.root.setAttribute("aria-labelledby", id);
    const heading = element("h2", "", this.title);
    heading.id = id;
    this.figures = {};
    const list = element("dl", "figures");
    this.figureList = list;
    for (const [key, name] of [["clock", "Clock"], ["calls", "LLM calls"], ["searches", "Rounds"], ["subqueries", "Sub-queries"]]) {
      this.addFigure(key, name, key === "clock" ? "0.00 s" : "0");
    }
    const head = element("div", "lane-head");
    head.append(heading, list);
    this.answerBox = element("div", "answer pending");
    this.answerBox.append(element("p", "working", "Working ..."));
    this.turnList = element("ol", "turns");
    this.root.append(head, this.answerBox, this.waterfall.root, this.turnList);
  }

  addFigure(key, name, text) {
    const pair = element("div");
    this.figures[key] = element("dd", "", text);
    this.figures[key].dataset.figure = key;
    pair.append(element("dt", "", name), this.figures[key]);
    this.figureList.append(pair);
  }

  get nowS() {
    return this.elapsedS ?? (performance.now() - this.startedMs) / 1000;
  }

  get isRunning() {
    return this.elapsedS === null;
  }

  draw(scaleS) {
    this.figures.clock.textContent = seconds(this.nowS);
    this.waterfall.draw(this.nowS, scaleS);
  }

  // ---- what happens -------------------------------------------------------------------------------------------------

  event(event) {
    const handler = { turn: "onTurn", text: "onText", query: "onQuery", result: "onResult", notice: "onNotice", reading: "onReading" }[event.type];
    if (handler) this[handler](event);
  }

  onTurn(event, title = `Turn ${event.turn + 1}`) {
    this.endModel(event.time_s);
    this.count("calls");
    const item = element("li", "turn");
    item.append(element("h3", "", title));
    const thought = element("p", "thought");
    const queries = element("div", "queries");
    item.append(thought, queries);
    this.turnList.append(item);
    const bar = this.waterfall.start("model", `${title}: model writes`, event.time_s);
    this.turns.set(event.turn, { item, thought, queries, bar, thoughts: "", speech: "", lastS: event.time_s, hasSearched: false });
  }

  onReading(event) {
    this.onTurn(event, `Read by ${event.text}`);
  }

  onText(event) {
    const turn = this.turns.get(event.turn);
    if (!turn) return;
    turn.lastS = event.time_s;
    this.waterfall.seen(turn.bar, event.time_s);
    if (event.part === "thought") turn.thoughts += event.text;
    if (event.part === "other") turn.speech += event.text;
    // What a chat model says may be its answer, which nobody knows before the end. A call in the text is for no reader.
    turn.thought.textContent = (turn.thoughts + (/^\s*[<{`]/.test(turn.speech) ? "" : turn.speech)).trim();
  }

  onQuery(event) {
    const turn = this.turns.get(event.turn);
    if (!turn) return;
    if (!turn.hasSearched) this.count("searches");
    turn.hasSearched = true;
    this.count("subqueries");
    const card = element("section", "query searching");
    const title = element("h4", "", event.text);
    const state = element("p", "state", "searching ...");
    const hits = element("ol", "hits");
    card.append(title, state, hits);
    turn.queries.append(card);
    const bar = this.waterfall.start("search", event.text, event.time_s);
    this.queries.set(`${event.turn} ${event.text}`, { card, state, hits, bar });
    // How long after its dispatch it is on the screen: after the frame that shows it.
    requestAnimationFrame(() =>
      setTimeout(() => {
        card.dataset.lagMs = String(Math.round(performance.timeOrigin + performance.now() - event.at_ms));
      }),
    );
    this.announceSoon(event.text);
  }

  /** Sub-queries that start together are read out together. */
  announceSoon(query) {
    if (this.toAnnounce.push(query) > 1) return;
    setTimeout(() => {
      const queries = this.toAnnounce.splice(0);
      if (this.isRunning) this.announce(`${this.title}: searching for ${queries.join("; ")}`);
    }, 200);
  }

  onResult(event) {
    const query = this.queries.get(`${event.turn} ${event.text}`);
    if (!query) return;
    this.waterfall.end(query.bar, event.start_s, event.end_s);
    query.card.classList.remove("searching");
    const time = seconds(event.end_s - event.start_s);
    if (event.error) {
      query.card.classList.add("failed");
      query.state.textContent = `failed after ${time}: ${event.error}`;
      return;
    }
    query.state.textContent = `${counted(event.hits.length, "hit", "hits")} in ${time}${event.cached ? ", from the cache" : ""}`;
    for (const hit of event.hits) {
      const item = element("li");
      item.dataset.id = hit.id;
      const details = element("details");
      const summary = element("summary");
      summary.append(element("span", "number"), hit.title || hit.id);
      details.append(summary, element("p", "", hit.text));
      if (hit.place) details.append(element("p", "why", hit.place));
      item.append(details);
      query.hits.append(item);
    }
  }

  onNotice(event) {
    const turn = this.turns.get(event.turn);
    if (!turn) return;
    for (const [key, query] of this.queries) {
      if (key.startsWith(`${event.turn} `) && query.bar.endS === null) {
        this.waterfall.end(query.bar, query.bar.startS, event.time_s);
        query.card.classList.remove("searching");
        query.state.textContent = "withdrawn";
      }
    }
    turn.item.append(element("p", "notice", "The model's turn could not be used; it was told why."));
  }

  endModel(timeS) {
    for (const turn of this.turns.values()) {
      if (turn.bar.endS === null) this.waterfall.end(turn.bar, turn.bar.startS, Math.min(timeS, turn.lastS));
    }
  }

  count(key) {
    this.figures[key].textContent = String(++this.counts[key]);
  }

  // ---- how it ends --------------------------------------------------------------------------------------------------

  finish(summary, content, isCut) {
    this.summary = summary;
    this.elapsedS = summary.elapsed_s;
    summary.turns.forEach((record, number) => {
      const turn = this.turns.get(number);
      if (!turn) return;
      this.waterfall.end(turn.bar, record.start_s, record.start_s + record.generate_s);
      if (!turn.hasSearched) turn.thought.textContent = turn.thoughts.trim(); // what was said stands above, as the answer
      turn.thought.hidden = !turn.thought.textContent;
    });
    const reading = summary.written ? this.turns.get(summary.turns.length) : null;
    if (reading) reading.thought.textContent = reading.thoughts.trim(); // the text stands above
    for (const query of this.queries.values()) {
      if (query.bar.endS === null) this.waterfall.end(query.bar, query.bar.startS, summary.elapsed_s);
    }
    this.figures.calls.textContent = String(summary.num_llm_calls);
    this.figures.searches.textContent = String(summary.num_searches);
    this.figures.subqueries.textContent = String(summary.num_subqueries);
    if (typeof summary.cost === "number") this.addFigure("cost", "Cost", String(Number(summary.cost.toPrecision(3))));
    const numbers = new Map(summary.sources.map((source) => [source.id, source.number]));
    for (const item of this.root.querySelectorAll(".hits li")) {
      const number = numbers.get(item.dataset.id);
      if (number) item.querySelector(".number").textContent = `[${number}] `;
    }
    this.showAnswer(summary, content, isCut);
  }

  showAnswer(summary, content, isCut) {
    const none = { max_turns: "No answer within the turns allowed.", max_tokens: "No answer: no room left.", timeout: "No answer in time." };
    const text = content || none[summary.stop] || "No answer.";
    const isWritten = content && summary.written && !summary.abstained;
    const why = (basis) => (isWritten && basis !== "cited" ? STATES : BASES[basis]);
    const cited = new Map(summary.citations.map((citation) => [citation.number, why(citation.basis)]));
    const words = isWritten ? rendered(text, (number) => (cited.has(number) ? this.idOf(number) : null)) : worded(text);
    if (!content || summary.abstained) words.classList.add("none");
    this.answerBox.className = summary.abstained ? "answer not-found" : content ? "answer" : "answer none";
    this.answerBox.replaceChildren(element("h3", "", summary.abstained ? (summary.abstained === "misread" ? "Not given" : "Not found") : "Answer"), words);
    if (summary.question && summary.question !== this.question) {
      this.answerBox.append(element("p", "why", `Understood as: ${summary.question}`));
    }
    if (summary.reading) this.answerBox.append(element("p", "why", readBy(summary.reading)));
    if (isWritten && isCut) this.answerBox.append(element("p", "doubt", "The text was cut off where a turn ends."));
    for (const doubt of summary.doubts) {
      const missing = doubt.missing.join(", ");
      this.answerBox.append(element("p", "doubt", `Look again: “${doubt.text}”, and [${doubt.number}] has no ${missing}.`));
    }
    if (summary.abstained) {
      if (summary.answer) this.answerBox.append(element("p", "why", `The model's own guess: ${summary.answer}`));
      this.addSources("What came nearest", summary.nearest.map((number) => summary.sources.find((one) => one.number === number)), new Map());
    } else if (cited.size) {
      this.addSources(isWritten ? "Sources" : "Rests on", summary.sources.filter((one) => cited.has(one.number)), cited);
    } else if (summary.sources.length) {
      this.answerBox.append(element("p", "why", `From ${counted(summary.sources.length, "passage", "passages")}; none holds the answer's words.`));
    }
    if (summary.invalid_citations.length) {
      this.answerBox.append(element("p", "why", `Left out, as there are no such passages: [${summary.invalid_citations.join("], [")}].`));
    }
    const told = isWritten ? `a text of ${counted(text.split(/\s+/).length, "word", "words")},` : text; // its marks are no speech
    this.announce(`${this.title}: ${summary.abstained ? "" : "answer: "}${told} ${counted(cited.size, "source", "sources")}, ${seconds(summary.elapsed_s)}.`);
  }

  idOf(number) {
    return `${this.id}-source-${number}`;
  }

  addSources(heading, sources, why) {
    if (!sources.length) return;
    const list = element("ul", "sources");
    for (const source of sources) {
      const item = element("li");
      item.id = this.idOf(source.number);
      item.append(element("span", "number", `[${source.number}] `), link(source.title || source.id, source.url));
      if (source.place) item.append(element("span", "why", `, ${source.place}`));
      if (why.has(source.number)) item.append(element("span", "why", ` (${why.get(source.number)})`));
      item.append(element("p", "excerpt", source.text));
      list.append(item);
    }
    this.answerBox.append(element("h4", "", heading), list);
  }

  fail(message) {
    this.elapsedS = this.nowS;
    this.endModel(this.elapsedS);
    for (const query of this.queries.values()) {
      if (query.bar.endS === null) {
        this.waterfall.end(query.bar, query.bar.startS, this.elapsedS);
        query.state.textContent = "stopped";
      }
      query.card.classList.remove("searching");
    }
    this.answerBox.className = "answer none";
    this.answerBox.replaceChildren(element("h3", "", "No answer"), element("p", "answer-text none", message));
    this.announce(`${this.title}: ${message}`);
  }
}

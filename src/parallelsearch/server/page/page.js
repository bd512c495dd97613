// The form, the streams, and one lane for each way of answering. No library, no network but this server.

import { Lane, counted, element } from "./lane.js";

const byId = (id) => document.getElementById(id);
const form = byId("ask");
let facts = { model: "parallelsearch", k: 3, default_max_turns: 4, max_turns: 10 };
let lanes = [];
let abort = null;
const earlier = [];

// ---- talking to the server ------------------------------------------------------------------------------------------

function headers() {
  const token = byId("token").value.trim();
  return { "Content-Type": "application/json", ...(token ? { Authorization: `Bearer ${token}` } : {}) };
}

class Refused extends Error {}
class NeedsToken extends Refused {}

async function refusal(response) {
  if (response.status === 401) {
    byId("token-row").hidden = false;
    byId("token").focus();
    return new NeedsToken("This server wants an access token.");
  }
  const body = await response.json().catch(() => null);
  const wait = response.headers.get("retry-after");
  const message = body?.error?.message ?? `The server answered ${response.status}.`;
  return new Refused(wait ? `${message} Try again in ${wait} s.` : message);
}

/** The JSON objects of a stream of server-sent events. */
async function* objects(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
    }
  }
}

async function run(lane, body, signal) {
  const request = { method: "POST", headers: headers(), body: JSON.stringify(body), signal };
  const response = await fetch("v1/chat/completions", request);
  if (!response.ok) throw await refusal(response);
  let content = "";
  for await (const chunk of objects(response)) {
    if (chunk.error) throw new Refused(chunk.error.message);
    content += chunk.choices[0]?.delta.content ?? "";
    const beside = chunk.parallelsearch;
    if (beside?.event) lane.event(beside.event);
    else if (beside) lane.finish(beside, content, chunk.choices[0]?.finish_reason === "length");
  }
  if (lane.isRunning) throw new Refused("The connection ended before the answer.");
  return content;
}

// ---- asking ---------------------------------------------------------------------------------------------------------

function requestFor(question, sequential, isCompared) {
  const followUp = byId("follow-up").checked ? earlier.slice(-4) : [];
  const messages = followUp.flatMap(([q, a]) => [{ role: "user", content: q }, { role: "assistant", content: a }]);
  // One at a time takes more turns; a comparison must not be won by cutting the other short.
  const maxTurns = Number(byId("max-turns").value) || facts.default_max_turns;
  const options = {
    k: Number(byId("k").value) || facts.k,
    max_turns: isCompared || sequential ? facts.max_turns : maxTurns,
    abstain: byId("abstain").checked,
    ...(facts.reader ? { read: byId("read").checked } : {}),
    ...(facts.can_write ? { written: byId("written").checked && !isCompared } : {}),
    fresh: isCompared, // what one way has found must not speed up the other
  };
  const model = sequential ? `${facts.model}-sequential` : facts.model; // the server knows how this policy is asked so
  return { model, stream: true, messages: [...messages, { role: "user", content: question }], parallelsearch: options };
}

async function ask() {
  const question = byId("question").value.trim();
  if (!/[\p{L}\p{N}]/u.test(question)) {
    problem("Type a question first.");
    byId("question").focus();
    return;
  }
  abort?.abort();
  const mine = (abort = new AbortController());
  const mode = new FormData(form).get("mode");
  const ways = mode === "compare" ? ["parallel", "sequential"] : [mode];
  byId("problem").hidden = byId("verdict").hidden = true;
  byId("stop").disabled = false;
  byId("examples-section").open = false;
  lanes = ways.map((way) => new Lane(way === "parallel" ? "All at once" : "One at a time", question, say));
  byId("lanes").replaceChildren(...lanes.map((lane) => lane.root));
  byId("lanes").classList.toggle("two", lanes.length === 2);
  requestAnimationFrame(draw);
  const work = lanes.map((lane, number) =>
    run(lane, requestFor(question, ways[number] === "sequential", ways.length === 2), mine.signal).catch((error) => {
      const message = error.name === "AbortError" ? "Stopped." : error instanceof Refused ? error.message : "The server cannot be reached.";
      lane.fail(message);
      if (mine === abort && error instanceof NeedsToken) problem(message);
      return null;
    }),
  );
  const contents = await Promise.all(work);
  if (mine !== abort) return;
  byId("stop").disabled = true;
  draw();
  if (contents[0] !== null) {
    earlier.push([question, contents[0]]);
    byId("num-earlier").textContent = String(Math.min(4, earlier.length));
  }
  if (lanes.length === 2) verdict();
}

function draw() {
  const scaleS = Math.max(...lanes.map((lane) => lane.nowS));
  for (const lane of lanes) lane.draw(scaleS);
  if (lanes.some((lane) => lane.isRunning)) requestAnimationFrame(draw);
}

function verdict() {
  const [one, other] = lanes.map((lane) => lane.summary);
  if (!one || !other) return;
  const times = other.elapsed_s / Math.max(one.elapsed_s, 0.001);
  const speed = times >= 1 ? `${times.toFixed(1)} times as fast` : `${(1 / times).toFixed(1)} times as slow`;
  const cost = (summary) => `${summary.elapsed_s.toFixed(2)} s and ${counted(summary.num_llm_calls, "LLM call", "LLM calls")}`;
  const added = facts.latency_s ? ` ${facts.latency_s} s were added to each search.` : "";
  const details = `${cost(one)} all at once, ${cost(other)} one at a time.${added}`;
  byId("verdict").replaceChildren(element("strong", "", `All at once was ${speed}.`), details);
  byId("verdict").hidden = false;
  say(`All at once was ${speed}: ${details}`);
}

function say(text) {
  byId("status").textContent = text;
}

function problem(message) {
  byId("problem").textContent = message;
  byId("problem").hidden = false;
}

// ---- the form -------------------------------------------------------------------------------------------------------

form.addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
byId("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    ask();
  }
});
byId("stop").addEventListener("click", () => abort?.abort());
byId("token").addEventListener("change", learn);

async function learn() {
  try {
    const response = await fetch("page.json", { headers: headers() });
    if (!response.ok) throw await refusal(response);
    facts = await response.json();
  } catch (error) {
    problem(error instanceof Refused ? error.message : "The server cannot be reached.");
    return;
  }
  byId("problem").hidden = true;
  const reader = facts.reader ? ` Read by: ${facts.reader}.` : "";
  byId("who").textContent = `Policy: ${facts.policy}.${reader} Search: ${facts.search}.`;
  byId("read-row").hidden = !facts.reader;
  byId("reader").textContent = facts.reader ?? "";
  byId("written-row").hidden = !facts.can_write;
  byId("written").checked = facts.written;
  byId("pace").textContent = facts.latency_s ? `Each search is made to take ${facts.latency_s} s longer, as one over the web would.` : "";
  byId("question").maxLength = facts.max_question_chars;
  byId("question").placeholder = facts.examples[0] ?? "Your question";
  for (const [id, value, most] of [["k", facts.k, facts.max_k], ["max-turns", facts.default_max_turns, facts.max_turns]]) {
    byId(id).max = most;
    byId(id).value = value;
  }
  const buttons = facts.examples.map((question) => {
    const button = element("button", "", question);
    button.type = "button";
    button.addEventListener("click", () => {
      byId("question").value = question;
      ask();
      byId("results").focus();
    });
    const item = element("li");
    item.append(button);
    return item;
  });
  byId("examples").replaceChildren(...buttons);
  byId("examples-section").hidden = buttons.length === 0;
}

learn();

"use strict";
// Where rows and trajectories come from: embedded in the page, or asked of the server that sent it. Both give the same.

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
}

class EmbeddedSource {
  constructor(data) {
    this.data = data;
    this.opened = new Map();
  }

  async runs() {
    this.head = JSON.parse(await unpack(this.data.head));
    return this.head;
  }

  /** Hands rows to `take` as they come. */
  async rows(run, take) {
    take(JSON.parse(await unpack(this.data.rows[run])), true);
  }

  /** Rows whose error classes were still missing, once they are known. */
  async judged() {
    return null;
  }

  has(run, number) {
    return this.head.runs[run].places[number] >= 0;
  }

  async record(run, number) {
    const place = this.head.runs[run].places[number];
    if (place < 0) throw new Error("This trajectory was left out to keep the file small. parallelsearch view RUN --serve shows all.");
    const block = Math.floor(place / this.head.block_records);
    if (!this.opened.has(block)) {
      if (this.opened.size > 8) this.opened.clear();
      this.opened.set(block, (await unpack(this.data.blocks[block])).split("\n"));
    }
    return JSON.parse(this.opened.get(block)[place % this.head.block_records]);
  }
}

class NeedsToken extends Error {}

class ServedSource {
  constructor() {
    this.token = null;
    this.opened = new Map();
  }

  async get(path) {
    const headers = this.token ? { Authorization: `Bearer ${this.token}` } : {};
    let response;
    try {
      response = await fetch(path, { headers });
    } catch {
      throw new Error("The viewer's server does not answer; is it still running?");
    }
    if (response.status === 401) throw new NeedsToken("An access token is needed.");
    const value = await response.json();
    if (!response.ok) throw new Error(value.detail);
    return value;
  }

  async runs() {
    this.head = await this.get("api/runs");
    return this.head;
  }

  async rows(run, take) {
    const { generation } = this.head.runs[run];
    for (let start = 0; ;) {
      const page = await this.get(`api/rows?run=${run}&start=${start}`);
      if (page.generation !== generation) throw new Error("The run was written anew on disk; load the page again.");
      start += page.rows.length;
      const isDone = page.is_complete && page.rows.length < this.head.max_rows;
      take(page.rows, isDone, page.num_bytes ? page.num_bytes_read / page.num_bytes : 1);
      if (isDone) return;
      if (page.rows.length < this.head.max_rows) await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }

  async judged(run, count) {
    while (!(await this.get(`api/rows?run=${run}&start=${count}`)).is_judged) await new Promise((resolve) => setTimeout(resolve, 150));
    const rows = [];
    while (rows.length < count) {
      const page = await this.get(`api/rows?run=${run}&start=${rows.length}`);
      if (page.generation !== this.head.runs[run].generation || !page.rows.length) return null;
      rows.push(...page.rows);
    }
    return rows.slice(0, count);
  }

  has() {
    return true;
  }

  async record(run, number) {
    const name = `${run}/${number}`;
    if (!this.opened.has(name)) {
      if (this.opened.size > 64) this.opened.clear();
      this.opened.set(name, await this.get(`api/record?run=${run}&row=${number}`));
    }
    return this.opened.get(name);
  }
}

function openSource() {
  const data = document.getElementById("data");
  return data ? new EmbeddedSource(JSON.parse(data.textContent)) : new ServedSource();
}

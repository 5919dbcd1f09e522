import { inPlainForm } from "../engine/tokenizer.js";

const MOST_ALTERNATIVES = 4096;

/** Answers what the views ask by asking the server. Its methods throw a ServerError, or an AbortError of a signal. */
export class ServerSource {
  constructor(key) {
    this.key = key;
    this.vocabulary = null; // characters of the model that was described last; null where it reads any text
    this.attention = this.posting("/api/attention");
    this.lens = this.posting("/api/lens");
    this.surprisal = this.posting("/api/surprisal");
    this.picture = this.posting("/api/picture");
    this.continuation = this.posting("/api/continue");
  }

  /** Names of the models, the server's first one at the head. */
  async models() {
    return (await this.get("/v1/models")).data.map(({ id }) => id);
  }

  /** What the page says about a model, which is loaded for it. */
  async facts(model) {
    const path = `/api/models/${model.split("/").map(encodeURIComponent).join("/")}`;
    const facts = await (await this.ask(path, { method: "POST" })).json();
    this.vocabulary = facts.characters && new Set(facts.characters);
    return facts;
  }

  /** A text as the model reads it: unknown characters in a plain form, or left out. */
  readable(text) {
    return this.vocabulary ? inPlainForm(text, this.vocabulary).known.join("") : text;
  }

  /** Continues a prompt, and returns its characters that the model does not know, as `LocalSource.write` does. */
  async write({ count, prompt, ...request }, onTokens) {
    const snakeCase = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
    const named = Object.fromEntries(Object.entries(request).map(([name, value]) => [snakeCase(name), value]));
    const isText = typeof prompt === "string";
    const body = { ...named, prompt: isText ? this.readable(prompt) : prompt, max_tokens: count };
    for await (const { tokens } of this.events("/api/generate", body)) onTokens(tokens);
    return isText && this.vocabulary ? inPlainForm(prompt, this.vocabulary).unknown : [];
  }

  /** Logits, up to a constant, from which the token after some ids is sampled; -Infinity for ids that are not told. */
  async logitsAfter({ model, ids, signal }) {
    const only = { max_tokens: 1, known: ids.length, alternatives: MOST_ALTERNATIVES };
    const request = { model, prompt: ids, ...only, signal };
    for await (const { tokens } of this.events("/api/generate", request)) {
      if (!tokens.length) continue;
      const [{ sampled }] = tokens; // as the model has them, but for ids without a text
      const logits = new Float32Array(1 + Math.max(...sampled.map(([id]) => id))).fill(-Infinity);
      for (const [id, , probability] of sampled) logits[id] = Math.log(probability);
      return logits;
    }
    return null;
  }

  runs() {
    return this.get("/api/runs");
  }

  run({ name }) {
    return this.get(`/api/runs/${encodeURIComponent(name)}`);
  }

  /** What a model looked like at a step, its embeddings in the plane of those of the step `basis`. */
  snapshot({ name, step, basis }) {
    return this.get(`/api/runs/${encodeURIComponent(name)}/snapshots/${step}?basis=${basis}`);
  }

  async get(path) {
    return (await this.ask(path)).json();
  }

  /** A function from a request, which may have a signal, to its answer. */
  posting(path) {
    return async ({ signal, text, ...body }) =>
      (await this.send(path, { ...body, text: this.readable(text) }, signal)).json();
  }

  /** Yields the JSON of server-sent events that answer a POST, up to the one called [DONE]. */
  async *events(path, { signal, ...body }) {
    const reader = (await this.send(path, body, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
    let pending = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new ServerError(0, "the connection to the server was lost");
      const [...complete] = (pending + value).split("\n\n");
      pending = complete.pop();
      for (const event of complete) {
        const content = event.replace(/^data: /, "");
        if (content === "[DONE]") return;
        const answer = JSON.parse(content);
        if (answer.error) throw new ServerError(500, answer.error.message);
        yield answer;
      }
    }
  }

  send(path, body, signal) {
    const headers = { "Content-Type": "application/json" };
    return this.ask(path, { method: "POST", body: JSON.stringify(body), headers, signal });
  }

  /** @param {string} path @param {RequestInit} options */
  async ask(path, options = {}) {
    const key = this.key ? { Authorization: `Bearer ${this.key}` } : {};
    const response = await fetch(path, { ...options, headers: { ...options.headers, ...key } }).catch((error) => {
      throw error.name === "AbortError" ? error : new ServerError(0, "the server does not answer");
    });
    if (response.ok) return response;
    const { error } = await response.json().catch(() => ({}));
    throw new ServerError(response.status, error?.message || response.statusText || `status ${response.status}`);
  }
}

/** What the server refused; `status` is that of HTTP, 0 where there was no answer. */
class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

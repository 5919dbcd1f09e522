import { inPlainForm } from "../engine/tokenizer.js";
import { withMarks } from "../marks.js";

const MOST_ALTERNATIVES = 4096; // that the server returns

/**
 * Answers what the views ask by asking the server. Methods throw a ServerError, or an AbortError
 * when a signal is aborted.
 */
export class ServerSource {
  constructor(key) {
    this.key = key;
    // the characters of the model that was described last; null if it reads any text
    this.vocabulary = null;
    this.begin = null; // the id before each text of that model, where there is one
    this.attention = this.posting("/api/attention");
    this.lens = this.posting("/api/lens");
    this.surprisal = this.posting("/api/surprisal");
    this.picture = this.posting("/api/picture");
    this.continuation = this.posting("/api/continue");
  }

  /** Names of the models, the server's first model at the head. */
  async models() {
    const { data } = await this.get("/v1/models");
    return data.map(({ id }) => id);
  }

  /** What the page says about a model, which the server loads if it must. */
  async facts(model) {
    const name = model.split("/").map(encodeURIComponent).join("/");
    const response = await this.ask(`/api/models/${name}`, { method: "POST" });
    const facts = await response.json();
    this.vocabulary = facts.characters && new Set(facts.characters);
    this.begin = facts.marks.begin;
    return facts;
  }

  /** A text as the model reads it: unknown characters in a plain form, or left out. */
  readable(text) {
    return this.vocabulary ? inPlainForm(text, this.vocabulary).known.join("") : text;
  }

  /**
   * Continues a prompt, and returns its characters that the model does not know, as
   * `LocalSource.write` does.
   */
  async write({ count, prompt, ...request }, onTokens) {
    const isText = typeof prompt === "string";
    const body = { prompt: isText ? this.readable(prompt) : prompt, max_tokens: count };
    for (const [name, value] of Object.entries(request)) body[snakeCase(name)] = value;
    for await (const { tokens } of this.events("/api/generate", body)) onTokens(tokens);
    return isText && this.vocabulary ? inPlainForm(prompt, this.vocabulary).unknown : [];
  }

  /**
   * Logits, up to a constant, from which the token after some ids is sampled; -Infinity for ids
   * that are not listed.
   */
  async logitsAfter({ model, ids, signal }) {
    // one token, described by as many alternatives as there may be, at temperature 1 and without
    // filters
    const settings = { max_tokens: 1, known: ids.length, alternatives: MOST_ALTERNATIVES };
    const request = { model, prompt: ids, ...settings, signal };
    for await (const { tokens } of this.events("/api/generate", request)) {
      if (!tokens.length) continue;
      const [{ sampled }] = tokens; // unlike `own`, without ids that have no text
      const largestId = Math.max(...sampled.map(([id]) => id));
      const logits = new Float32Array(largestId + 1).fill(-Infinity);
      for (const [id, , probability] of sampled) logits[id] = Math.log(probability);
      return logits;
    }
    return null;
  }

  /** Whether it is known how models learned: as the server's folder of runs says. */
  get hasLearning() {
    return true;
  }

  /** The texts of the snapshots of a model's run, in the order of their steps. */
  async texts({ model }) {
    const { runs } = await this.runs();
    if (!runs.includes(model)) return []; // as of a model that was imported
    const { texts } = await this.get(`/api/runs/${encodeURIComponent(model)}/texts`);
    return texts;
  }

  runs() {
    return this.get("/api/runs");
  }

  run({ name }) {
    return this.get(`/api/runs/${encodeURIComponent(name)}`);
  }

  /**
   * What a model looked like at a step, its embeddings in the plane of those of the step `basis`.
   */
  snapshot({ name, step, basis }) {
    return this.get(`/api/runs/${encodeURIComponent(name)}/snapshots/${step}?basis=${basis}`);
  }

  async get(path) {
    const response = await this.ask(path);
    return response.json();
  }

  /**
   * A method that sends a request with a text, in which signs stand for marks, and perhaps a
   * signal, and returns the answer.
   */
  posting(path) {
    return async ({ signal, text, ...body }) => {
      const read = this.readable(this.begin === null ? text : withMarks(text));
      const response = await this.send(path, { ...body, text: read }, signal);
      return response.json();
    };
  }

  /**
   * Yields the JSON of the server-sent events that answer a POST, up to the last one, which says
   * [DONE].
   */
  async *events(path, { signal = undefined, ...body }) {
    const response = await this.send(path, body, signal);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let pending = ""; // the beginning of an event whose end has not come yet
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new ServerError(0, "the connection to the server was lost");
      const complete = (pending + value).split("\n\n");
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
    const headers = new Headers(options.headers);
    if (this.key) headers.set("Authorization", `Bearer ${this.key}`);
    const response = await fetch(path, { ...options, headers }).catch((error) => {
      if (error.name === "AbortError") throw error;
      throw new ServerError(0, "the server does not answer");
    });
    if (response.ok) return response;
    const { error } = await response.json().catch(() => ({})); // a proxy may answer in HTML
    const { status, statusText } = response;
    throw new ServerError(status, error?.message || statusText || `status ${status}`);
  }
}

function snakeCase(name) {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/**
 * A request that the server refused or did not answer; `status` is that of HTTP, 0 where there was
 * no answer.
 */
class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

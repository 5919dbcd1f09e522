/** Answers what the views ask by asking the server. Its methods throw a ServerError, or an AbortError of a signal. */
class ServerSource {
  constructor(key) {
    this.key = key;
  }

  /** Names of the models, the server's first one at the head. */
  async models() {
    return (await this.get("/v1/models")).data.map(({ id }) => id);
  }

  /** What the page says about a model. */
  facts(model) {
    return this.get(`/api/models/${model.split("/").map(encodeURIComponent).join("/")}`);
  }

  async write({ count, ...request }, onTokens) {
    const snakeCase = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
    const named = Object.fromEntries(Object.entries(request).map(([name, value]) => [snakeCase(name), value]));
    const body = { ...named, max_tokens: count };
    for await (const { tokens } of this.events("/api/generate", body)) onTokens(tokens);
  }

  attention(body) {
    return this.post("/api/attention", body);
  }

  lens(body) {
    return this.post("/api/lens", body);
  }

  surprisal(body) {
    return this.post("/api/surprisal", body);
  }

  trace(body) {
    return this.post("/api/trace", body);
  }

  runs() {
    return this.get("/api/runs");
  }

  run({ name, after = -1 }) {
    return this.get(`/api/runs/${encodeURIComponent(name)}?after=${after}`);
  }

  sample({ name, step }) {
    return this.get(`/api/runs/${encodeURIComponent(name)}/samples/${step}`);
  }

  training() {
    return this.get("/api/training");
  }

  /** `text` has its number of `characters`, and `vocabulary`, the number of distinct ones, or else `corpus`, its name. */
  trainingChoices(text) {
    return this.get(`/api/training/choices?${new URLSearchParams(text)}`);
  }

  /** Changes what is trained: `action` is "start", "stop" or "resume"; `token` is that of `training()`. */
  async changeTraining(action, token, body) {
    const headers = { "Content-Type": "application/json", "X-Training-Token": token };
    return (await this.ask(`/api/training/${action}`, { method: "POST", body: JSON.stringify(body), headers })).json();
  }

  /** What a model writes after a text when it always takes the most likely token. */
  continuation(body) {
    return this.post("/api/continue", body);
  }

  async get(path, signal = null) {
    return (await this.ask(path, { signal })).json();
  }

  async post(path, { signal, ...body }) {
    return (await this.send(path, body, signal)).json();
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

  async ask(path, { headers = {}, ...options }) {
    const key = this.key ? { Authorization: `Bearer ${this.key}` } : {};
    const response = await fetch(path, { ...options, headers: { ...headers, ...key } }).catch((error) => {
      throw error.name === "AbortError" ? error : new ServerError(0, "the server does not answer");
    });
    if (response.ok) return response;
    const { error } = await response.json().catch(() => ({}));
    throw new ServerError(response.status, error?.message ?? response.statusText);
  }
}

/** What the server refused; `status` is that of HTTP, 0 where there was no answer. */
class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Text to ids and back; see gpt/data/tokenizers.py. */
class Tokenizer {
  constructor({ type, chars }) {
    this.chars = type === "char" ? chars : null;
    this.ids = new Map((chars ?? []).map((char, id) => [char, id]));
  }

  /** Ids of a text, and the distinct characters that have none. */
  encode(text) {
    if (!this.chars) return { ids: [...new TextEncoder().encode(text)], unknown: [] };
    const characters = [...text];
    return {
      ids: characters.filter((char) => this.ids.has(char)).map((char) => this.ids.get(char)),
      unknown: [...new Set(characters.filter((char) => !this.ids.has(char)))],
    };
  }

  /** A function from one id after another to the text that is complete with it. */
  stream() {
    if (this.chars) return (id) => this.chars[id] ?? "\ufffd";
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    return (id) => decoder.decode(Uint8Array.of(id), { stream: true });
  }

  /** Where an empty prompt starts: after a line end, or, where there is none, after id 0. */
  get first() {
    return this.encode("\n").ids[0] ?? 0;
  }
}

/** Mersenne Twister (Matsumoto and Nishimura 1998), the generator of `torch.Generator` on a CPU. */
class Twister {
  constructor(seed) {
    this.state = new Uint32Array(624);
    this.state[0] = seed;
    for (let index = 1; index < 624; index++) {
      const last = this.state[index - 1];
      this.state[index] = Math.imul(1812433253, last ^ (last >>> 30)) + index;
    }
    this.place = 624;
  }

  refill() {
    const { state } = this;
    for (let index = 0; index < 624; index++) {
      const mixed = (state[index] & 0x80000000) | (state[(index + 1) % 624] & 0x7fffffff);
      state[index] = state[(index + 397) % 624] ^ (mixed >>> 1) ^ (mixed & 1 ? 0x9908b0df : 0);
    }
    this.place = 0;
  }

  /** The float32 that `torch.rand` would give: 24 random bits as a fraction, in [0, 1). */
  uniform() {
    if (this.place === 624) this.refill();
    let bits = this.state[this.place++];
    bits ^= bits >>> 11;
    bits ^= (bits << 7) & 0x9d2c5680;
    bits ^= (bits << 15) & 0xefc60000;
    bits ^= bits >>> 18;
    return (bits & 0xffffff) / 2 ** 24;
  }
}

/** Probabilities (V) after temperature and top-k, in that order; temperature 0 is the most likely token. */
function probabilitiesOf(logits, temperature = 1, topK = 0) {
  const probabilities = Float32Array.from(logits);
  const largest = probabilities.reduce((most, logit) => Math.max(most, logit), -Infinity);
  if (temperature === 0) return probabilities.fill(0).fill(1, logits.indexOf(largest), logits.indexOf(largest) + 1);
  for (let id = 0; id < probabilities.length; id++) probabilities[id] = (probabilities[id] - largest) / temperature;
  if (topK > 0 && topK < probabilities.length) {
    const smallestKept = Float32Array.from(probabilities).sort().at(-topK);
    for (let id = 0; id < probabilities.length; id++) {
      if (probabilities[id] < smallestKept) probabilities[id] = -Infinity;
    }
  }
  softmax(probabilities, probabilities.length);
  return probabilities;
}

/** The token whose share of the cumulative distribution holds `uniform`. */
function sampleToken(probabilities, uniform) {
  const total = probabilities.reduce((sum, probability) => sum + probability, 0);
  let [sum, last] = [0, 0];
  for (let id = 0; id < probabilities.length; id++) {
    if (probabilities[id] === 0) continue;
    sum += probabilities[id];
    last = id;
    if (sum > uniform * total) break;
  }
  return last;
}

/** Ids and probabilities of the `count` most likely tokens. */
function likeliest(probabilities, count) {
  const order = Array.from(probabilities.keys()).sort((a, b) => probabilities[b] - probabilities[a] || a - b);
  return order.slice(0, count).map((id) => [id, probabilities[id]]);
}

/** A text that grows token by token, with the model's logits before each. */
class Text {
  constructor(model) {
    this.model = model;
    this.ids = [];
    this.logits = []; // before each token; null for the first, before which there is nothing
    this.start = 0; // of the window
    this.cached = 0; // tokens of the window that are in the cache
  }

  /** Where the window begins in a text of `length` tokens: it moves by a quarter of itself when it is full. */
  windowStart(length) {
    const { block_size: size } = this.model.config;
    const chunk = Math.max(1, Math.floor(size / 4));
    return length <= size ? 0 : Math.ceil((length - size) / chunk) * chunk;
  }

  /** Logits (V) of the token that comes next. */
  nextLogits() {
    const { ids, model } = this;
    const start = this.windowStart(ids.length);
    if (start !== this.start) [this.start, this.cached] = [start, 0];
    let logits = null;
    while (start + this.cached < ids.length) {
      const isLast = start + this.cached === ids.length - 1;
      logits = model.step(ids[start + this.cached], this.cached, isLast);
      this.cached++;
    }
    return logits;
  }

  /** Appends a token, and keeps the logits from which it was chosen or read. */
  append(id, logits = this.ids.length ? this.nextLogits() : null) {
    this.logits.push(logits && Float32Array.from(logits));
    this.ids.push(id);
  }

  /** Samples a token and appends it. */
  sample(temperature, topK, uniform) {
    const logits = this.nextLogits();
    const id = sampleToken(probabilitiesOf(logits, temperature, topK), uniform);
    this.append(id, logits);
    return id;
  }

  /** Forgets the tokens from `length` on. The last token kept is computed again, for the logits after it. */
  truncate(length) {
    this.ids.length = this.logits.length = length;
    this.cached = Math.max(0, Math.min(this.cached, length - 1 - this.start));
  }

  /** Attention over the last tokens, at most `most`, as `showAttention` takes it; the cache is computed anew. */
  attention(most) {
    const { n_layer: layers, n_head: heads, block_size: size } = this.model.config;
    const ids = this.ids.slice(-Math.min(most, size));
    const triangle = (ids.length * (ids.length + 1)) / 2;
    const weights = new Float32Array(layers * heads * triangle);
    ids.forEach((id, query) => {
      this.model.step(id, query, false, (layer, head, row) =>
        weights.set(row, (layer * heads + head) * triangle + (query * (query + 1)) / 2)
      );
    });
    this.cached = 0;
    return { ids, layers, heads, weights };
  }
}

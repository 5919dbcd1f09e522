import { createArena, paddedLength } from "./kernel.js";
import { halfPrecisionTable, readTensor } from "./weights.js";

const ACTIVATIONS = {
  gelu: (x) => 0.5 * x * (1 + erf(x * Math.SQRT1_2)),
  gelu_tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  relu: (x) => Math.max(0, x),
  relu2: (x) => Math.max(0, x) ** 2,
};

/** The error function to 1.5e-7 (Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26). */
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  return Math.sign(x) * (1 - series * Math.exp(-x * x));
}

/** Replaces scores by their softmax. */
export function softmax(scores, length) {
  let largest = -Infinity;
  for (let index = 0; index < length; index++) largest = Math.max(largest, scores[index]);
  let sum = 0;
  for (let index = 0; index < length; index++) {
    scores[index] = Math.exp(scores[index] - largest);
    sum += scores[index];
  }
  for (let index = 0; index < length; index++) scores[index] /= sum;
}

/** Angles `position / theta^(2 i / width)` through a function, (positions, width / 2). */
function angleTable(positions, width, theta, of) {
  const half = width / 2;
  return Float32Array.from({ length: positions * half }, (_, index) =>
    of(Math.floor(index / half) * theta ** ((-2 * (index % half)) / width))
  );
}

function addTo(x, y) {
  for (let index = 0; index < x.length; index++) x[index] += y[index];
}

const CACHES = 2; // one for the text that is written, one for the text that is read
export const NO_HEADS = new Set();

/** The model of gpt/model, one token at a time with cached keys and values. */
export class Model {
  /**
   * `data` has `config`, the `model` section of a configuration with its derived sizes, and `tensors`, an index of
   * names, shapes, formats and offsets into `bytes`.
   */
  constructor({ config, tensors }, bytes) {
    const { n_layer: layers, n_embd: width, block_size: positions, head_dim: headDim } = config;
    const kvWidth = config.n_kv_head * headDim;
    const activations = {
      x: width,
      h: width,
      q: width,
      z: width,
      k: kvWidth,
      v: kvWidth,
      scores: positions,
      hidden: config.mlp_hidden,
      gate: config.mlp_hidden,
      logits: config.vocab_size,
    };
    const sizes = [
      ...Object.values(activations),
      ...tensors.map(({ shape }) => shape.reduce((product, size) => product * size, 1)),
      ...new Array(CACHES * 2 * layers * config.n_kv_head).fill(positions * headDim),
    ];
    this.config = config;
    /** Names and shapes of all outside the blocks, and of the first one: the others are like it. */
    this.parameters = tensors
      .filter(({ name }) => /^(h\.0\.|(?!h\.))/.test(name))
      .map(({ name, shape }) => [name, shape]);
    this.arena = createArena(sizes.reduce((sum, size) => sum + paddedLength(size), 0));
    /** @type {Record<string, Float32Array>} */
    this.buffers = {};
    for (const [name, size] of Object.entries(activations)) this.buffers[name] = this.arena.alloc(size);
    this.tensors = new Map();
    const halves = halfPrecisionTable();
    for (const entry of tensors) {
      const values = this.arena.alloc(entry.shape.reduce((product, size) => product * size, 1));
      readTensor(entry, bytes, values, halves);
      this.tensors.set(entry.name, values);
    }
    const allocate = () =>
      Array.from({ length: layers }, () =>
        Array.from({ length: config.n_kv_head }, () => this.arena.alloc(positions * headDim))
      );
    // Both [layer][head]; keys (positions, D), values (D, positions): the weighted sum is a matmul by rows of them.
    this.caches = Array.from({ length: CACHES }, () => ({ keys: allocate(), values: allocate() }));
    this.headViews = Object.fromEntries(
      ["q", "z", "k", "v"].map((name) => [name, this.splitHeads(this.buffers[name])])
    );
    this.buildPositions();
  }

  splitHeads(values) {
    const { head_dim: size } = this.config;
    return Array.from({ length: values.length / size }, (_, head) => values.subarray(head * size, (head + 1) * size));
  }

  buildPositions() {
    const { position, block_size: positions, n_embd: width, head_dim: headDim, rope_theta: theta } = this.config;
    if (position === "learned") this.added = this.tensors.get("wpe.weight");
    if (position === "sinusoidal") {
      const [sines, cosines] = [Math.sin, Math.cos].map((of) => angleTable(positions, width, theta, of));
      this.added = Float32Array.from(
        { length: positions * width },
        (_, index) => (index % 2 ? cosines : sines)[Math.floor(index / 2)]
      );
    }
    if (position === "rope") {
      this.cosines = angleTable(positions, headDim, theta, Math.cos);
      this.sines = angleTable(positions, headDim, theta, Math.sin);
    }
  }

  /** The number by which a head is ablated. */
  headNumber(layer, head) {
    return layer * this.config.n_head + head;
  }

  /**
   * Stores the keys and values of a token at `position`, after those of all earlier positions; with `wantLogits`
   * returns the logits (V) of the next token, which the next call overwrites. The outputs of the heads in `ablated`
   * are zeros. `onWeights(layer, head, weights)` sees each head's attention weights on the positions up to this one;
   * `onLens(row, logits)` the logits of each residual stream: row 0 is the embeddings, row i the stream after i blocks.
   * `onVector(name, values)` sees in turn what is added to the stream (`embedding`, `position`, then `attn` and `mlp` of
   * each block), what the norms give (`ln_1` and `ln_2` of each block), and `q`, `k` and `hidden` of each block; what it is
   * handed changes afterwards.
   */
  step(token, position, options = {}) {
    const { cache = this.caches[0], wantLogits = true, ablated = NO_HEADS } = options;
    const { onWeights = null, onLens = null, onVector = null } = options;
    const { n_layer: layers, n_embd: width } = this.config;
    this.buffers.x.set(this.tensors.get("wte.weight").subarray(token * width, (token + 1) * width));
    onVector?.("embedding", this.buffers.x);
    if (this.added) {
      const added = this.added.subarray(position * width, (position + 1) * width);
      onVector?.("position", added);
      addTo(this.buffers.x, added);
    }
    onLens?.(0, this.computeLogits());
    for (let layer = 0; layer < layers; layer++) {
      this.norm(this.buffers.h, this.buffers.x, `h.${layer}.ln_1`);
      onVector?.("ln_1", this.buffers.h);
      this.storeKeysAndValues(cache, layer, position);
      const isLast = layer === layers - 1;
      const isRead = wantLogits || onWeights || onLens || onVector;
      if (isLast && !isRead) return null;
      this.attend(cache, layer, position, ablated, onWeights);
      onVector?.("k", this.buffers.k);
      onVector?.("q", this.buffers.q);
      onVector?.("attn", this.buffers.h);
      addTo(this.buffers.x, this.buffers.h);
      this.norm(this.buffers.h, this.buffers.x, `h.${layer}.ln_2`);
      onVector?.("ln_2", this.buffers.h);
      this.feedForward(`h.${layer}.mlp`);
      onVector?.("hidden", this.buffers.hidden);
      onVector?.("mlp", this.buffers.h);
      addTo(this.buffers.x, this.buffers.h);
      onLens?.(layer + 1, this.computeLogits());
    }
    return wantLogits ? this.computeLogits() : null;
  }

  storeKeysAndValues(cache, layer, position) {
    const { n_kv_head: heads, head_dim: headDim, block_size: positions } = this.config;
    const name = `h.${layer}.attn`;
    for (const part of ["k", "v"]) this.linear(this.buffers[part], `${name}.c_${part}`, this.buffers.h);
    for (const head of this.headViews.k) this.place(head, `${name}.k_norm`, position);
    for (let head = 0; head < heads; head++) {
      cache.keys[layer][head].set(this.headViews.k[head], position * headDim);
      const [values, v] = [cache.values[layer][head], this.headViews.v[head]];
      for (let index = 0; index < headDim; index++) values[index * positions + position] = v[index];
    }
  }

  /** Attention from h to h. */
  attend(cache, layer, position, ablated, onWeights) {
    const { n_head: heads, n_kv_head: kvHeads, head_dim: headDim, block_size: positions } = this.config;
    const name = `h.${layer}.attn`;
    this.linear(this.buffers.q, `${name}.c_q`, this.buffers.h);
    for (const head of this.headViews.q) this.place(head, `${name}.q_norm`, position);
    const length = position + 1;
    for (let head = 0; head < heads; head++) {
      const shared = Math.floor((head * kvHeads) / heads);
      const [scores, z] = [this.buffers.scores, this.headViews.z[head]];
      this.arena.matmul(scores, cache.keys[layer][shared], this.headViews.q[head], headDim, length, headDim);
      for (let index = 0; index < length; index++) scores[index] /= Math.sqrt(headDim);
      softmax(scores, length);
      onWeights?.(layer, head, scores.subarray(0, length));
      if (ablated.has(this.headNumber(layer, head))) z.fill(0);
      else this.arena.matmul(z, cache.values[layer][shared], scores, length, headDim, positions);
    }
    this.linear(this.buffers.h, `${name}.c_proj`, this.buffers.z);
  }

  /** Normalizes and rotates one head's query or key, as the configuration asks. */
  place(head, norm, position) {
    if (this.config.qk_norm) this.rmsNorm(head, head, this.tensors.get(`${norm}.weight`));
    if (!this.cosines) return;
    const half = head.length / 2;
    for (let index = 0; index < half; index++) {
      const [cos, sin] = [this.cosines[position * half + index], this.sines[position * half + index]];
      const [first, second] = [head[index], head[index + half]];
      head[index] = first * cos - second * sin;
      head[index + half] = second * cos + first * sin;
    }
  }

  /** The feed-forward network from h to h. */
  feedForward(name) {
    const { hidden, gate } = this.buffers;
    this.linear(hidden, `${name}.c_fc`, this.buffers.h);
    if (this.config.mlp === "swiglu") {
      this.linear(gate, `${name}.c_gate`, this.buffers.h);
      for (let index = 0; index < hidden.length; index++) hidden[index] *= gate[index] / (1 + Math.exp(-gate[index]));
    } else {
      const activation = ACTIVATIONS[this.config.mlp];
      for (let index = 0; index < hidden.length; index++) hidden[index] = activation(hidden[index]);
    }
    this.linear(this.buffers.h, `${name}.c_proj`, hidden);
  }

  computeLogits() {
    const { tie_weights: tied } = this.config;
    this.norm(this.buffers.h, this.buffers.x, "ln_f");
    const head = this.tensors.get(tied ? "wte.weight" : "lm_head.weight");
    const { logits } = this.buffers;
    this.arena.matmul(logits, head, this.buffers.h, this.buffers.h.length, logits.length, this.buffers.h.length);
    return logits;
  }

  linear(out, name, x) {
    this.arena.matmul(out, this.tensors.get(`${name}.weight`), x, x.length, out.length, x.length);
    const bias = this.tensors.get(`${name}.bias`);
    if (bias) addTo(out, bias);
  }

  norm(out, x, name) {
    const weight = this.tensors.get(`${name}.weight`);
    if (this.config.norm === "rmsnorm") this.rmsNorm(out, x, weight);
    else this.layerNorm(out, x, weight, this.tensors.get(`${name}.bias`));
  }

  rmsNorm(out, x, weight) {
    let squares = 0;
    for (let index = 0; index < x.length; index++) squares += x[index] ** 2;
    const scale = 1 / Math.sqrt(squares / x.length + this.config.norm_eps);
    for (let index = 0; index < x.length; index++) out[index] = x[index] * scale * weight[index];
  }

  layerNorm(out, x, weight, bias) {
    let [sum, squares] = [0, 0];
    for (let index = 0; index < x.length; index++) sum += x[index];
    const mean = sum / x.length;
    for (let index = 0; index < x.length; index++) squares += (x[index] - mean) ** 2;
    const scale = 1 / Math.sqrt(squares / x.length + this.config.norm_eps);
    for (let index = 0; index < x.length; index++) out[index] = (x[index] - mean) * scale * weight[index];
    if (bias) addTo(out, bias);
  }
}

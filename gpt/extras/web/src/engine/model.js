import { createArena, paddedLength } from "./kernel.js";
import { halfPrecisionTable, readTensor } from "./weights.js";

/** As in gpt/model/layers.py; swiglu is computed in `feedForward`, since it has two inputs. */
const ACTIVATIONS = {
  gelu: (x) => 0.5 * x * (1 + erf(x * Math.SQRT1_2)),
  gelu_tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  relu: (x) => Math.max(0, x),
  relu2: (x) => Math.max(0, x) ** 2,
};

/**
 * The error function to 1.5e-7 (Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26).
 */
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const series =
    ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  return Math.sign(x) * (1 - series * Math.exp(-x * x));
}

/** Replaces the first `length` scores by their softmax. */
export function softmax(scores, length) {
  let largest = -Infinity; // subtracted, so that no exponential overflows
  for (let index = 0; index < length; index++) largest = Math.max(largest, scores[index]);
  let sum = 0;
  for (let index = 0; index < length; index++) {
    scores[index] = Math.exp(scores[index] - largest);
    sum += scores[index];
  }
  for (let index = 0; index < length; index++) scores[index] /= sum;
}

/**
 * A function, sine or cosine, of the angles `position / theta^(2 i / width)`: (positions, width /
 * 2).
 */
function angleTable(positions, width, theta, func) {
  const half = width / 2;
  const valueAt = (_, index) => {
    const position = Math.floor(index / half);
    const frequency = theta ** ((-2 * (index % half)) / width);
    return func(position * frequency);
  };
  return Float32Array.from({ length: positions * half }, valueAt);
}

/** The number of elements of a tensor. */
function sizeOf(shape) {
  return shape.reduce((product, size) => product * size, 1);
}

function addTo(x, y) {
  for (let index = 0; index < x.length; index++) x[index] += y[index];
}

// of keys and values: one for the text that is written, one for the text that is read
const CACHES = 2;
export const NO_HEADS = new Set();

/** The model of gpt/model, one token at a time with cached keys and values. */
export class Model {
  /**
   * `config` is the `model` section of a configuration with its derived sizes. `tensors` has name,
   * shape, format and the offset into `bytes` of each tensor.
   */
  constructor({ config, tensors }, bytes) {
    const { n_layer: layers, n_embd: width, block_size: positions, head_dim: headDim } = config;
    const kvWidth = config.n_kv_head * headDim;
    const lengths = {
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
    // WebAssembly's memory is allocated at once, so all lengths are summed up before anything is
    // put into it
    const all = [
      ...Object.values(lengths),
      ...tensors.map(({ shape }) => sizeOf(shape)),
      // keys and values of each head
      ...new Array(CACHES * 2 * layers * config.n_kv_head).fill(positions * headDim),
    ];
    this.config = config;
    /**
     * Names and shapes of the tensors outside the blocks and in the first block; the other blocks
     * are like it.
     */
    this.parameters = tensors
      .filter(({ name }) => name.startsWith("h.0.") || !name.startsWith("h."))
      .map(({ name, shape }) => [name, shape]);
    this.arena = createArena(all.reduce((sum, length) => sum + paddedLength(length), 0));
    /** @type {Record<string, Float32Array>} */
    this.buffers = {};
    for (const [name, length] of Object.entries(lengths))
      this.buffers[name] = this.arena.alloc(length);
    this.tensors = new Map();
    const halves = halfPrecisionTable();
    for (const entry of tensors) {
      const values = this.arena.alloc(sizeOf(entry.shape));
      readTensor(entry, bytes, values, halves);
      this.tensors.set(entry.name, values);
    }
    this.caches = Array.from({ length: CACHES }, () => this.createCache());
    this.headViews = {
      q: this.splitHeads(this.buffers.q),
      z: this.splitHeads(this.buffers.z),
      k: this.splitHeads(this.buffers.k),
      v: this.splitHeads(this.buffers.v),
    };
    this.buildPositions();
  }

  /**
   * Room for the keys and values of a text, both as [layer][head]. A head's keys are (positions,
   * D), its values (D, positions), so that the sum of the values by their weights is a matmul with
   * rows of them, too.
   */
  createCache() {
    const {
      n_layer: layers,
      n_kv_head: heads,
      head_dim: headDim,
      block_size: positions,
    } = this.config;
    const allocateLayer = () =>
      Array.from({ length: heads }, () => this.arena.alloc(positions * headDim));
    const allocate = () => Array.from({ length: layers }, allocateLayer);
    return { keys: allocate(), values: allocate() };
  }

  /** The part of a vector that belongs to each head. */
  splitHeads(values) {
    const { head_dim: size } = this.config;
    return Array.from({ length: values.length / size }, (_, head) =>
      values.subarray(head * size, (head + 1) * size)
    );
  }

  /**
   * Sets the tables of positions: `added` to the embeddings, or `cosines` and `sines` of rotations.
   */
  buildPositions() {
    const {
      position,
      block_size: positions,
      n_embd: width,
      head_dim: headDim,
      rope_theta: theta,
    } = this.config;
    if (position === "learned") this.added = this.tensors.get("wpe.weight");
    if (position === "sinusoidal") {
      const sines = angleTable(positions, width, theta, Math.sin);
      const cosines = angleTable(positions, width, theta, Math.cos);
      // sines in even columns, cosines in odd ones
      this.added = Float32Array.from({ length: positions * width }, (_, index) => {
        const table = index % 2 ? cosines : sines;
        return table[Math.floor(index / 2)];
      });
    }
    if (position === "rope") {
      this.cosines = angleTable(positions, headDim, theta, Math.cos);
      this.sines = angleTable(positions, headDim, theta, Math.sin);
    }
  }

  /** The number of a head among those of all layers, by which it is ablated. */
  headNumber(layer, head) {
    return layer * this.config.n_head + head;
  }

  /**
   * Reads a token at `position`, after all earlier positions, and stores its keys and values in
   * `cache`. With `wantLogits`, returns the logits (V) of the next token, which the next call
   * overwrites. The outputs of the heads in `ablated` are zeros. Three functions see what is
   * computed, in arrays that change afterwards:
   * - `onWeights(layer, head, weights)`: the attention weights of each head on the positions up to
   *   this one;
   * - `onLens(row, logits)`: the logits of the residual stream, in row 0 of the embeddings, in row
   *   i after i blocks;
   * - `onVector(name, values)`: what is added to the stream (`embedding`, `position`, then `attn`
   *   and `mlp` of each block), what the norms return (`ln_1` and `ln_2` of each block), and `q`,
   *   `k` and `hidden` of each block.
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
      const isOutputUsed = wantLogits || onWeights || onLens || onVector;
      if (isLast && !isOutputUsed) return null; // the keys and values of all layers are stored
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

  /** Computes the key and value of each head from h, and stores them in the cache. */
  storeKeysAndValues(cache, layer, position) {
    const { n_kv_head: heads, head_dim: headDim, block_size: positions } = this.config;
    const name = `h.${layer}.attn`;
    this.linear(this.buffers.k, `${name}.c_k`, this.buffers.h);
    this.linear(this.buffers.v, `${name}.c_v`, this.buffers.h);
    for (const head of this.headViews.k) this.place(head, `${name}.k_norm`, position);
    for (let head = 0; head < heads; head++) {
      cache.keys[layer][head].set(this.headViews.k[head], position * headDim);
      const values = cache.values[layer][head];
      const v = this.headViews.v[head];
      for (let index = 0; index < headDim; index++) values[index * positions + position] = v[index];
    }
  }

  /** Computes attention from h to h. */
  attend(cache, layer, position, ablated, onWeights) {
    const {
      n_head: heads,
      n_kv_head: kvHeads,
      head_dim: headDim,
      block_size: positions,
    } = this.config;
    const name = `h.${layer}.attn`;
    this.linear(this.buffers.q, `${name}.c_q`, this.buffers.h);
    for (const head of this.headViews.q) this.place(head, `${name}.q_norm`, position);
    const length = position + 1;
    for (let head = 0; head < heads; head++) {
      // several heads may share keys and values
      const kvHead = Math.floor((head * kvHeads) / heads);
      const { scores } = this.buffers;
      const z = this.headViews.z[head];
      this.arena.matmul(
        scores,
        cache.keys[layer][kvHead],
        this.headViews.q[head],
        headDim,
        length,
        headDim
      );
      for (let index = 0; index < length; index++) scores[index] /= Math.sqrt(headDim);
      softmax(scores, length);
      onWeights?.(layer, head, scores.subarray(0, length));
      if (ablated.has(this.headNumber(layer, head))) z.fill(0);
      else this.arena.matmul(z, cache.values[layer][kvHead], scores, length, headDim, positions);
    }
    this.linear(this.buffers.h, `${name}.c_proj`, this.buffers.z);
  }

  /** Normalizes and rotates one head's query or key, as the configuration asks. */
  place(head, norm, position) {
    if (this.config.qk_norm) this.rmsNorm(head, head, this.tensors.get(`${norm}.weight`));
    if (!this.cosines) return;
    const half = head.length / 2;
    for (let index = 0; index < half; index++) {
      const cos = this.cosines[position * half + index];
      const sin = this.sines[position * half + index];
      const first = head[index];
      const second = head[index + half];
      head[index] = first * cos - second * sin;
      head[index + half] = second * cos + first * sin;
    }
  }

  /** Computes the feed-forward network from h to h. */
  feedForward(name) {
    const { hidden, gate } = this.buffers;
    this.linear(hidden, `${name}.c_fc`, this.buffers.h);
    if (this.config.mlp === "swiglu") {
      this.linear(gate, `${name}.c_gate`, this.buffers.h);
      for (let index = 0; index < hidden.length; index++)
        hidden[index] *= gate[index] / (1 + Math.exp(-gate[index]));
    } else {
      const activation = ACTIVATIONS[this.config.mlp];
      for (let index = 0; index < hidden.length; index++) hidden[index] = activation(hidden[index]);
    }
    this.linear(this.buffers.h, `${name}.c_proj`, hidden);
  }

  /**
   * The logits (V) of the residual stream as it is, by the final norm and the head. It changes h.
   */
  computeLogits() {
    const { logits, h, x } = this.buffers;
    this.norm(h, x, "ln_f");
    const head = this.tensors.get(this.config.tie_weights ? "wte.weight" : "lm_head.weight");
    this.arena.matmul(logits, head, h, h.length, logits.length, h.length);
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
    let sum = 0;
    for (let index = 0; index < x.length; index++) sum += x[index];
    const mean = sum / x.length;
    let squares = 0;
    for (let index = 0; index < x.length; index++) squares += (x[index] - mean) ** 2;
    const scale = 1 / Math.sqrt(squares / x.length + this.config.norm_eps);
    for (let index = 0; index < x.length; index++)
      out[index] = (x[index] - mean) * scale * weight[index];
    if (bias) addTo(out, bias);
  }
}

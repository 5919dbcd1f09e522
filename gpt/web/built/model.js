"use strict";
var page = (() => {
  var __defProp = Object.defineProperty;
  var __getOwnPropDesc = Object.getOwnPropertyDescriptor;
  var __getOwnPropNames = Object.getOwnPropertyNames;
  var __hasOwnProp = Object.prototype.hasOwnProperty;
  var __export = (target, all) => {
    for (var name in all)
      __defProp(target, name, { get: all[name], enumerable: true });
  };
  var __copyProps = (to, from, except, desc) => {
    if (from && typeof from === "object" || typeof from === "function") {
      for (let key of __getOwnPropNames(from))
        if (!__hasOwnProp.call(to, key) && key !== except)
          __defProp(to, key, { get: () => from[key], enumerable: !(desc = __getOwnPropDesc(from, key)) || desc.enumerable });
    }
    return to;
  };
  var __toCommonJS = (mod) => __copyProps(__defProp({}, "__esModule", { value: true }), mod);

  // gpt/web/src/pages/model.js
  var model_exports = {};
  __export(model_exports, {
    Model: () => Model,
    decodeBase64: () => decodeBase64,
    findProblem: () => findProblem,
    logitsAfter: () => logitsAfter
  });

  // gpt/web/src/dom.js
  function create(tag, className = "", ...children) {
    const element = document.createElement(tag);
    element.className = className;
    element.append(...children);
    return element;
  }
  function createButton(className, text, act, label = "") {
    const button = create("button", className, text);
    button.type = "button";
    if (label) button.setAttribute("aria-label", label);
    button.addEventListener("click", act);
    return button;
  }
  function createIn(svg, tag, attributes = {}, ...children) {
    const element = document.createElementNS(svg.namespaceURI, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }
  function fill(root, template) {
    root.replaceChildren(...new DOMParser().parseFromString(template, "text/html").body.childNodes);
    return partsOf(root);
  }
  function partsOf(root) {
    const parts = {};
    for (const element of root.querySelectorAll("[data-part], [id]")) {
      parts[camelCase(element.dataset.part ?? element.id)] = element;
    }
    return parts;
  }
  function camelCase(name) {
    return name.replace(/[-_]([a-z])/g, (_, letter) => letter.toUpperCase());
  }
  function say(status, message, isWrong = false) {
    status.textContent = message;
    status.classList.toggle("wrong", isWrong);
  }
  function isSubmit(event) {
    return event.key === "Enter" && (event.ctrlKey || event.metaKey);
  }
  function keyIn(table, event) {
    return event.ctrlKey || event.altKey || event.metaKey ? void 0 : table[event.key];
  }
  function within(value, most) {
    return Math.min(most, Math.max(0, value));
  }

  // gpt/web/src/engine/kernel_wasm.js
  var KERNEL = "AGFzbQEAAAABCgFgBn9/f39/fwACDwEDZW52Bm1lbW9yeQIAAAMCAQAEBQFwAQEBBgYBfwFBAAsHCgEGbWF0bXVsAAAKng0Bmw0GDX8IewN/AXsBfwF9QQAhBgJAIARBCEgNACAFQQV0IQcgASAFQRxsaiEIIAEgBUEYbGohCSABIAVBFGxqIQogASAFQQR0aiELIAEgBUEMbGohDCABIAVBA3RqIQ0gASAFQQJ0Ig5qIQ9BACEQIAEhEUEIIRIDQCASIQYCQAJAIANBBE4NAP0MAAAAAAAAAAAAAAAAAAAAACITIRQgEyEVIBMhFiATIRcgEyEYIBMhGSATIRpBACEbDAELQQAhGyARIRIgAiEc/QwAAAAAAAAAAAAAAAAAAAAAIhMhFCATIRUgEyEWIBMhFyATIRggEyEZIBMhGgNAIBsiHUEEaiEbIBogHP0AAgAiHiAS/QACAP3mAf3kASEaIBkgHiASIA5qIh/9AAIA/eYB/eQBIRkgGCAeIB8gDmoiH/0AAgD95gH95AEhGCAXIB4gHyAOaiIf/QACAP3mAf3kASEXIBYgHiAfIA5qIh/9AAIA/eYB/eQBIRYgFSAeIB8gDmoiH/0AAgD95gH95AEhFSAUIB4gHyAOaiIf/QACAP3mAf3kASEUIBMgHiAfIA5q/QACAP3mAf3kASETIBJBEGohEiAcQRBqIRwgHUEIaiADTA0ACwsgACAQQQJ0aiEfIBr9HwAgGv0fAZIgGv0fAiAa/R8DkpIhIAJAIAMgG0wiEA0AIAMgG2shHCAbQQJ0IRIDQCAgIAIgEmoqAgAgESASaioCAJSSISAgEkEEaiESIBxBf2oiHA0ACwsgHyAgOAIAIBn9HwAgGf0fAZIgGf0fAiAZ/R8DkpIhIAJAIBANACADIBtrIR0gAiAbQQJ0IhxqIRIgDyAcaiEcA0AgICASKgIAIBwqAgCUkiEgIBJBBGohEiAcQQRqIRwgHUF/aiIdDQALCyAfICA4AgQgGP0fACAY/R8BkiAY/R8CIBj9HwOSkiEgAkAgEA0AIAMgG2shHSACIBtBAnQiHGohEiANIBxqIRwDQCAgIBIqAgAgHCoCAJSSISAgEkEEaiESIBxBBGohHCAdQX9qIh0NAAsLIB8gIDgCCCAX/R8AIBf9HwGSIBf9HwIgF/0fA5KSISACQCAQDQAgAyAbayEdIAIgG0ECdCIcaiESIAwgHGohHANAICAgEioCACAcKgIAlJIhICASQQRqIRIgHEEEaiEcIB1Bf2oiHQ0ACwsgHyAgOAIMIBb9HwAgFv0fAZIgFv0fAiAW/R8DkpIhIAJAIBANACADIBtrIR0gAiAbQQJ0IhxqIRIgCyAcaiEcA0AgICASKgIAIBwqAgCUkiEgIBJBBGohEiAcQQRqIRwgHUF/aiIdDQALCyAfICA4AhAgFf0fACAV/R8BkiAV/R8CIBX9HwOSkiEgAkAgEA0AIAMgG2shHSACIBtBAnQiHGohEiAKIBxqIRwDQCAgIBIqAgAgHCoCAJSSISAgEkEEaiESIBxBBGohHCAdQX9qIh0NAAsLIB8gIDgCFCAU/R8AIBT9HwGSIBT9HwIgFP0fA5KSISACQCAQDQAgAyAbayEdIAIgG0ECdCIcaiESIAkgHGohHANAICAgEioCACAcKgIAlJIhICASQQRqIRIgHEEEaiEcIB1Bf2oiHQ0ACwsgHyAgOAIYIBP9HwAgE/0fAZIgE/0fAiAT/R8DkpIhIAJAIBANACADIBtrIR0gAiAbQQJ0IhxqIRIgCCAcaiEcA0AgICASKgIAIBwqAgCUkiEgIBJBBGohEiAcQQRqIRwgHUF/aiIdDQALCyAfICA4AhwgCCAHaiEIIAkgB2ohCSAKIAdqIQogCyAHaiELIAwgB2ohDCANIAdqIQ0gDyAHaiEPIBEgB2ohESAGIRAgBkEIaiISIARMDQALCwJAIAYgBE4NACAFQQJ0IR8gASAGIAVsQQJ0aiEdIANBBEghEQNAAkACQCARRQ0AQQAhHP0MAAAAAAAAAAAAAAAAAAAAACEeDAEL/QwAAAAAAAAAAAAAAAAAAAAAIR5BACEcIB0hDiACIRIDQCAcIhtBBGohHCAeIBL9AAIAIA79AAIA/eYB/eQBIR4gDkEQaiEOIBJBEGohEiAbQQhqIANMDQALCyAAIAZBAnRqIRsgHv0fACAe/R8BkiAe/R8CIB79HwOSkiEgAkAgAyAcTA0AIAMgHGshEiAcQQJ0IQ4DQCAgIAIgDmoqAgAgHSAOaioCAJSSISAgDkEEaiEOIBJBf2oiEg0ACwsgGyAgOAIAIB0gH2ohHSAGQQFqIgYgBEcNAAsLCw==";

  // gpt/web/src/engine/weights.js
  function decodeBase64(text) {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text.trim());
    const characters = atob(text);
    const bytes = new Uint8Array(characters.length);
    for (let index = 0; index < bytes.length; index++) bytes[index] = characters.charCodeAt(index);
    return bytes;
  }
  function halfPrecisionTable() {
    return Float32Array.from({ length: 65536 }, (_, bits) => {
      const [exponent, fraction] = [bits >> 10 & 31, bits & 1023];
      const size = exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25);
      return bits & 32768 ? -size : size;
    });
  }
  function readTensor({ format, shape, offset }, bytes, target, halves) {
    const view = new DataView(bytes.buffer, bytes.byteOffset + offset);
    const columns = shape.at(-1);
    const scalesAt = target.length;
    const scale = (row) => view.getFloat32(scalesAt + 4 * row, true);
    const readers = {
      float32: (index) => view.getFloat32(4 * index, true),
      fp16: (index) => halves[view.getUint16(2 * index, true)],
      int8: (index) => view.getInt8(index) * scale(Math.floor(index / columns))
    };
    const read = readers[format];
    for (let index = 0; index < target.length; index++) target[index] = read(index);
  }

  // gpt/web/src/engine/kernel.js
  function matmulPlain(out, weight, x, width, rows, stride) {
    let row = 0;
    for (; row + 4 <= rows; row += 4) {
      const [a, b, c, d] = [row * stride, (row + 1) * stride, (row + 2) * stride, (row + 3) * stride];
      let [sumA, sumB, sumC, sumD] = [0, 0, 0, 0];
      for (let at = 0; at < width; at++) {
        const factor = x[at];
        sumA += factor * weight[a + at];
        sumB += factor * weight[b + at];
        sumC += factor * weight[c + at];
        sumD += factor * weight[d + at];
      }
      out[row] = sumA;
      out[row + 1] = sumB;
      out[row + 2] = sumC;
      out[row + 3] = sumD;
    }
    for (; row < rows; row++) {
      let sum = 0;
      for (let at = 0; at < width; at++) sum += x[at] * weight[row * stride + at];
      out[row] = sum;
    }
  }
  function createArena(floats, useWasm = true) {
    const compiled = useWasm ? compileKernel(4 * floats) : null;
    const buffer = compiled?.buffer ?? new ArrayBuffer(4 * floats);
    let used = 0;
    const alloc = (length) => {
      const view = new Float32Array(buffer, 4 * used, length);
      used += paddedLength(length);
      return view;
    };
    return { alloc, matmul: compiled?.matmul ?? matmulPlain, kind: compiled ? "WebAssembly" : "JavaScript" };
  }
  function compileKernel(bytes) {
    try {
      const memory = new WebAssembly.Memory({ initial: Math.ceil(bytes / 65536) });
      const { exports } = new WebAssembly.Instance(new WebAssembly.Module(decodeBase64(KERNEL)), { env: { memory } });
      const kernel = (
        /** @type {(...addressesAndSizes: number[]) => void} */
        exports.matmul
      );
      const matmul = (out, weight, x, width, rows, stride) => kernel(out.byteOffset, weight.byteOffset, x.byteOffset, width, rows, stride);
      return { buffer: memory.buffer, matmul };
    } catch {
      return null;
    }
  }
  function paddedLength(length) {
    return Math.ceil(length / 4) * 4;
  }

  // gpt/web/src/engine/model.js
  var ACTIVATIONS = {
    gelu: (x) => 0.5 * x * (1 + erf(x * Math.SQRT1_2)),
    gelu_tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
    relu: (x) => Math.max(0, x),
    relu2: (x) => Math.max(0, x) ** 2
  };
  function erf(x) {
    const t = 1 / (1 + 0.3275911 * Math.abs(x));
    const series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
    return Math.sign(x) * (1 - series * Math.exp(-x * x));
  }
  function softmax(scores, length) {
    let largest = -Infinity;
    for (let index = 0; index < length; index++) largest = Math.max(largest, scores[index]);
    let sum = 0;
    for (let index = 0; index < length; index++) {
      scores[index] = Math.exp(scores[index] - largest);
      sum += scores[index];
    }
    for (let index = 0; index < length; index++) scores[index] /= sum;
  }
  function angleTable(positions, width, theta, of) {
    const half = width / 2;
    return Float32Array.from(
      { length: positions * half },
      (_, index) => of(Math.floor(index / half) * theta ** (-2 * (index % half) / width))
    );
  }
  function addTo(x, y) {
    for (let index = 0; index < x.length; index++) x[index] += y[index];
  }
  var CACHES = 2;
  var NO_HEADS = /* @__PURE__ */ new Set();
  var Model = class {
    /**
     * `data` has `config`, the `model` section of a configuration with its derived sizes, and `tensors`, an index of
     * names, shapes, formats and offsets into `bytes`.
     */
    constructor({ config, tensors }, bytes, useWasm = true) {
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
        logits: config.vocab_size
      };
      const sizes = [
        ...Object.values(activations),
        ...tensors.map(({ shape }) => shape.reduce((product, size) => product * size, 1)),
        ...new Array(CACHES * 2 * layers * config.n_kv_head).fill(positions * headDim),
        ...new Array(config.mlp_conv ? CACHES * layers : 0).fill(positions * width)
      ];
      this.config = config;
      this.arena = createArena(
        sizes.reduce((sum, size) => sum + paddedLength(size), 0),
        useWasm
      );
      this.buffers = {};
      for (const [name, size] of Object.entries(activations)) this.buffers[name] = this.arena.alloc(size);
      this.tensors = /* @__PURE__ */ new Map();
      const halves = halfPrecisionTable();
      for (const entry of tensors) {
        const values = this.arena.alloc(entry.shape.reduce((product, size) => product * size, 1));
        readTensor(entry, bytes, values, halves);
        this.tensors.set(entry.name, values);
      }
      const allocate = () => Array.from(
        { length: layers },
        () => Array.from({ length: config.n_kv_head }, () => this.arena.alloc(positions * headDim))
      );
      const allocateInputs = () => Array.from({ length: config.mlp_conv ? layers : 0 }, () => this.arena.alloc(positions * width));
      this.caches = Array.from({ length: CACHES }, () => ({
        keys: allocate(),
        values: allocate(),
        inputs: allocateInputs()
      }));
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
     */
    step(token, position, options = {}) {
      const { cache = this.caches[0], wantLogits = true, ablated = NO_HEADS, onWeights = null, onLens = null } = options;
      const { n_layer: layers, n_embd: width, mlp_conv: isConvolved } = this.config;
      this.buffers.x.set(this.tensors.get("wte.weight").subarray(token * width, (token + 1) * width));
      if (this.added) addTo(this.buffers.x, this.added.subarray(position * width, (position + 1) * width));
      onLens?.(0, this.computeLogits());
      for (let layer = 0; layer < layers; layer++) {
        this.norm(this.buffers.h, this.buffers.x, `h.${layer}.ln_1`);
        this.storeKeysAndValues(cache, layer, position);
        const isLast = layer === layers - 1;
        if (isLast && !wantLogits && !onWeights && !onLens && !isConvolved) return null;
        this.attend(cache, layer, position, ablated, onWeights);
        addTo(this.buffers.x, this.buffers.h);
        this.norm(this.buffers.h, this.buffers.x, `h.${layer}.ln_2`);
        if (isConvolved) this.convolve(cache.inputs[layer], `h.${layer}.mlp_conv`, position);
        this.feedForward(`h.${layer}.mlp`);
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
        const shared = Math.floor(head * kvHeads / heads);
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
    /** Stores h and adds `sum_j weight[:, j] h[position - j]` to it. */
    convolve(inputs, name, position) {
      const { h } = this.buffers;
      const weight = this.tensors.get(`${name}.weight`);
      inputs.set(h, position * h.length);
      const taps = this.config.mlp_conv;
      for (let tap = 0; tap < Math.min(taps, position + 1); tap++) {
        const row = (position - tap) * h.length;
        for (let index = 0; index < h.length; index++) h[index] += weight[index * taps + tap] * inputs[row + index];
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
      const { tie_weights: tied, logit_softcap: cap } = this.config;
      this.norm(this.buffers.h, this.buffers.x, "ln_f");
      const head = this.tensors.get(tied ? "wte.weight" : "lm_head.weight");
      const { logits } = this.buffers;
      this.arena.matmul(logits, head, this.buffers.h, this.buffers.h.length, logits.length, this.buffers.h.length);
      if (cap === null) return logits;
      for (let index = 0; index < logits.length; index++) logits[index] = cap * Math.tanh(logits[index] / cap);
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
  };

  // gpt/web/src/engine/probe.js
  function logitsAfter(model, ids) {
    return ids.map((id, position) => Float32Array.from(model.step(id, position)));
  }
  function findProblem(model, { ids, top, most }) {
    let difference = NaN;
    try {
      const logits = logitsAfter(model, ids).at(-1);
      difference = Math.max(...top.map(([id, logit]) => Math.abs(logits[id] - logit)));
    } catch {
    }
    if (difference <= most) return null;
    return `This page does not compute what its model computes, so it shows nothing: a logit differs by ${difference.toPrecision(2)}, and ${most.toPrecision(2)} is allowed. Export it again, in another format.`;
  }

  // gpt/web/src/engine/sampling.js
  var Twister = class {
    constructor(seed) {
      this.state = new Uint32Array(624);
      this.state[0] = seed;
      for (let index = 1; index < 624; index++) {
        const last = this.state[index - 1];
        this.state[index] = Math.imul(1812433253, last ^ last >>> 30) + index;
      }
      this.place = 624;
    }
    refill() {
      const { state } = this;
      for (let index = 0; index < 624; index++) {
        const mixed = state[index] & 2147483648 | state[(index + 1) % 624] & 2147483647;
        state[index] = state[(index + 397) % 624] ^ mixed >>> 1 ^ (mixed & 1 ? 2567483615 : 0);
      }
      this.place = 0;
    }
    /** The float32 that `torch.rand` would give: 24 random bits as a fraction, in [0, 1). */
    uniform() {
      if (this.place === 624) this.refill();
      let bits = this.state[this.place++];
      bits ^= bits >>> 11;
      bits ^= bits << 7 & 2636928640;
      bits ^= bits << 15 & 4022730752;
      bits ^= bits >>> 18;
      return (bits & 16777215) / 2 ** 24;
    }
  };
  function probabilitiesOf(logits, { temperature = 1, topK = 0, topP = 1, ids = logits.length } = {}) {
    const probabilities = Float32Array.from(logits).fill(-Infinity, ids);
    const largest = probabilities.reduce((most, logit) => Math.max(most, logit), -Infinity);
    if (temperature === 0) return probabilities.fill(0).fill(1, logits.indexOf(largest), logits.indexOf(largest) + 1);
    for (let id = 0; id < probabilities.length; id++) probabilities[id] = (probabilities[id] - largest) / temperature;
    if (topK > 0 && topK < probabilities.length) keepTopK(probabilities, topK);
    if (topP < 1) keepTopP(probabilities, topP);
    softmax(probabilities, probabilities.length);
    return probabilities;
  }
  function keepTopK(logits, k) {
    const smallestKept = Float32Array.from(logits).sort().at(-k);
    for (let id = 0; id < logits.length; id++) {
      if (logits[id] < smallestKept) logits[id] = -Infinity;
    }
  }
  function keepTopP(logits, p) {
    const probabilities = Float32Array.from(logits);
    softmax(probabilities, probabilities.length);
    let sum = 0;
    for (const id of byProbability(probabilities)) {
      const before = Math.fround(Math.fround(sum + probabilities[id]) - probabilities[id]);
      sum += probabilities[id];
      if (before >= p && before > 0) logits[id] = -Infinity;
    }
  }
  function byProbability(probabilities) {
    return Array.from(probabilities.keys()).sort((a, b) => probabilities[b] - probabilities[a] || a - b);
  }
  function sampleToken(probabilities, uniform) {
    const total = probabilities.reduce((sum2, probability) => sum2 + probability, 0);
    let [sum, last] = [0, 0];
    for (let id = 0; id < probabilities.length; id++) {
      if (probabilities[id] === 0) continue;
      sum += probabilities[id];
      last = id;
      if (sum > uniform * total) break;
    }
    return last;
  }
  function bitsOf(logits, id) {
    const largest = logits.reduce((most, logit) => Math.max(most, logit), -Infinity);
    const sum = logits.reduce((total, logit) => total + Math.exp(logit - largest), 0);
    return (Math.log(sum) + largest - logits[id]) / Math.LN2;
  }
  function describeSampling({ temperature, topK, topP }) {
    const parts = [`temperature ${temperature}`];
    if (topK) parts.push(`top-k ${topK}`);
    if (topP < 1) parts.push(`top-p ${topP}`);
    return parts.join(", ");
  }

  // gpt/web/src/engine/text.js
  var Text = class {
    constructor(model) {
      this.model = model;
      this.ids = [];
      this.logits = [];
      this.ablated = NO_HEADS;
      this.start = 0;
      this.cached = 0;
    }
    /** Where the window begins in a text of `length` tokens: it moves by a quarter of itself when it is full. */
    windowStart(length) {
      const { block_size: size } = this.model.config;
      const chunk = Math.max(1, Math.floor(size / 4));
      return length <= size ? 0 : Math.ceil((length - size) / chunk) * chunk;
    }
    /** Logits (V) of the token that comes next. */
    nextLogits() {
      const { ids, model, ablated } = this;
      const start = this.windowStart(ids.length);
      if (start !== this.start) [this.start, this.cached] = [start, 0];
      let logits = null;
      while (start + this.cached < ids.length) {
        const wantLogits = start + this.cached === ids.length - 1;
        logits = model.step(ids[start + this.cached], this.cached, { wantLogits, ablated });
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
    sample(settings, uniform) {
      const logits = this.nextLogits();
      const id = sampleToken(probabilitiesOf(logits, settings), uniform);
      this.append(id, logits);
      return id;
    }
    /** Forgets the tokens from `length` on. The last token kept is computed again, for the logits after it. */
    truncate(length) {
      this.ids.length = this.logits.length = length;
      this.cached = Math.max(0, Math.min(this.cached, length - 1 - this.start));
    }
    /** Keeps as much of the text as `ids` begins with, computed without the same heads. */
    keepBeginningOf(ids, ablated) {
      const isSame = ablated.size === this.ablated.size && [...ablated].every((head) => this.ablated.has(head));
      const different = this.ids.findIndex((id, index) => id !== ids[index]);
      this.truncate(isSame ? different < 0 ? this.ids.length : different : 0);
      this.ablated = ablated;
    }
  };

  // gpt/web/src/engine/source.js
  var SLICE_MILLISECONDS = 12;
  var ALTERNATIVES = 10;
  async function inSlices(count, task, signal, onSlice = () => {
  }) {
    let until = performance.now() + SLICE_MILLISECONDS;
    for (let index = 0; index < count; index++) {
      if (performance.now() > until) {
        onSlice();
        await new Promise((done) => setTimeout(done));
        signal?.throwIfAborted();
        until = performance.now() + SLICE_MILLISECONDS;
      }
      task(index);
    }
    onSlice();
  }
  var LocalSource = class {
    /** `labels` has one for each id; `sampling` are the settings that `surprisal` shows the effect of. */
    constructor(model, tokenizer, labels, sampling = {}) {
      this.model = model;
      this.tokenizer = tokenizer;
      this.labels = labels;
      this.sampling = sampling;
      this.pace = ` by ${model.arena.kind}`;
      this.text = new Text(model);
      this.turns = { writing: Promise.resolve(), reading: Promise.resolve() };
    }
    /** Calls `work` when earlier work of this kind has ended: it shares a cache. */
    inTurn(kind, work) {
      const result = this.turns[kind].then(work);
      this.turns[kind] = result.catch(() => {
      });
      return result;
    }
    /** Ids of a text, at least one. */
    encode(text) {
      const { ids, unknown } = this.tokenizer.encode(text);
      if (unknown.length) {
        const named = unknown.slice(0, 10).map((char) => `'${char}'`).join(", ");
        throw new RangeError(`The model does not know ${named}; remove it from the text.`);
      }
      return ids.length ? ids : [this.tokenizer.first];
    }
    ablatedHeads(ablate) {
      return new Set(ablate.map(([layer, head]) => this.model.headNumber(layer, head)));
    }
    /**
     * Continues a prompt, a text or its ids, by `count` tokens. `onTokens` gets the tokens of the prompt but for the
     * first `known`, then the new ones, several at a time. Ends with an AbortError when `signal` says so.
     */
    write({ prompt, count, seed, known = 0, ablate = [], signal, ...settings }, onTokens) {
      return this.inTurn("writing", async () => {
        const ids = typeof prompt === "string" ? this.encode(prompt) : prompt;
        settings.ids = this.tokenizer.size;
        this.text.keepBeginningOf(ids, this.ablatedHeads(ablate));
        const show = this.tokenizer.stream();
        const generator = new Twister(seed);
        const tokens = [];
        const write = (index) => {
          if (index >= this.text.ids.length) {
            if (index < ids.length) this.text.append(ids[index]);
            else this.text.sample(settings, generator.uniform());
          }
          const text = show(this.text.ids[index]);
          if (index >= known) tokens.push({ ...this.tokenAt(index, settings), text, isGiven: index < ids.length });
        };
        await inSlices(ids.length + count, write, signal, () => onTokens(tokens.splice(0)));
      });
    }
    /** A token of the text, and what could have been there, before and after the sampling settings. */
    tokenAt(index, settings) {
      const id = this.text.ids[index];
      const logits = this.text.logits[index];
      const label = this.labels[id];
      if (!logits) return { id, label, probability: null, chance: null, own: [], sampled: [] };
      const own = probabilitiesOf(logits);
      const sampled = probabilitiesOf(logits, settings);
      const lists = { own: this.mostLikely(own), sampled: this.mostLikely(sampled) };
      return { id, label, probability: own[id], chance: sampled[id], ...lists };
    }
    /** The most likely tokens that are possible, as triples of id, label and probability. */
    mostLikely(probabilities) {
      const ids = byProbability(probabilities).slice(0, ALTERNATIVES).filter((id) => probabilities[id] > 0);
      return ids.map((id) => [id, this.labels[id], probabilities[id]]);
    }
    /** What the model writes after a text when it always takes the most likely token; the text's end is read. */
    continuation({ text, count, ablate = [], signal }) {
      return this.inTurn("reading", async () => {
        const { block_size: size } = this.model.config;
        if (count >= size) {
          throw new RangeError(`A window of ${size} tokens has no room for ${count} new ones after a text.`);
        }
        const ids = this.encode(text).slice(count - size);
        const fixed = { cache: this.model.caches[1], ablated: this.ablatedHeads(ablate) };
        const [given, probabilities] = [ids.length, []];
        const step = (index) => {
          const logits = this.model.step(ids[index], index, { ...fixed, wantLogits: index >= given - 1 });
          if (!logits) return;
          const id = logits.indexOf(logits.reduce((most, logit) => Math.max(most, logit), -Infinity));
          ids.push(id);
          probabilities.push(probabilitiesOf(logits)[id]);
        };
        await inSlices(given + count - 1, step, signal);
        const written = ids.slice(given);
        return { ids: written, labels: this.labelsOf(written), probabilities };
      });
    }
    /**
     * Runs the model over a text that fits its window. `begin(ids)` gives `options`, from an index to those of
     * `Model.step`; `take(index, logits)`, where there is one, for what these return; and `view`, which makes the view.
     */
    read({ text, ablate = [], signal }, least, begin) {
      return this.inTurn("reading", async () => {
        const ids = this.encode(text);
        const { block_size: most } = this.model.config;
        if (ids.length < least) {
          throw new RangeError(`The text is too short; this view takes at least ${least} characters.`);
        }
        if (ids.length > most) throw new RangeError(`The text has ${ids.length} characters; the model reads ${most}.`);
        const { options = () => ({}), take = null, view } = begin(ids);
        const fixed = { cache: this.model.caches[1], ablated: this.ablatedHeads(ablate), wantLogits: take !== null };
        const step = (index) => {
          const logits = this.model.step(ids[index], index, { ...fixed, ...options(index) });
          take?.(index, logits);
        };
        await inSlices(ids.length, step, signal);
        return { labels: this.labelsOf(ids), ...view() };
      });
    }
    /** Where every head looks; `weights` are the lower triangles, row after row, head after head. */
    attention(request) {
      const { n_layer: layers, n_head: heads } = this.model.config;
      return this.read(request, 1, (ids) => {
        const triangle = ids.length * (ids.length + 1) / 2;
        const weights = new Float32Array(layers * heads * triangle);
        const place = (layer, head, query) => (layer * heads + head) * triangle + query * (query + 1) / 2;
        const options = (query) => ({ onWeights: (layer, head, row) => weights.set(row, place(layer, head, query)) });
        return { options, view: () => ({ layers, heads, weights }) };
      });
    }
    /** What the model would predict if it stopped after each block. */
    lens(request) {
      const { n_layer: layers } = this.model.config;
      const rows = ["embeddings", ...Array.from({ length: layers }, (_, layer) => `block ${layer}`)];
      return this.read(request, 1, (ids) => {
        const [top, came] = [rows.map(() => []), rows.map(() => [])];
        const options = (index) => ({
          onLens: (row, logits) => {
            const probabilities = probabilitiesOf(logits);
            const likely = byProbability(probabilities).slice(0, ALTERNATIVES);
            top[row].push(likely.map((id) => [this.labels[id], probabilities[id]]));
            came[row].push(probabilities[ids[index + 1]] ?? null);
          }
        });
        const next = [...this.labelsOf(ids.slice(1)), null];
        return { options, view: () => ({ rows, top, next, next_probability: came }) };
      });
    }
    /** How surprised the model is by each character, and what it expected, before and after the sampling settings. */
    surprisal(request) {
      const settings = { temperature: 1, topK: 0, topP: 1, ...this.sampling, ids: this.tokenizer.size };
      return this.read(request, 2, (ids) => {
        const [bits, before, after] = [[null], [[]], [[]]];
        const possible = (probabilities) => this.mostLikely(probabilities).map(([, ...entry]) => entry);
        const take = (index, logits) => {
          if (index === ids.length - 1) return;
          bits.push(bitsOf(logits, ids[index + 1]));
          before.push(possible(probabilitiesOf(logits)));
          after.push(possible(probabilitiesOf(logits, settings)));
        };
        const mean = () => bits.reduce((sum, value) => sum + value, 0) / (bits.length - 1);
        return { take, view: () => ({ bits, before, after, mean_bits: mean(), settings: describeSampling(settings) }) };
      });
    }
    labelsOf(ids) {
      return ids.map((id) => this.labels[id]);
    }
  };

  // gpt/web/src/engine/tokenizer.js
  var Tokenizer = class {
    constructor(data) {
      const { type, chars } = data;
      this.chars = type === "char" ? chars : null;
      this.ids = new Map((chars ?? []).map((char, id) => [char, id]));
      this.pairs = type === "bpe" ? new BytePairs(data) : null;
    }
    /** Ids of a text, and the distinct characters that have none. */
    encode(text) {
      if (this.pairs) return { ids: this.pairs.encode(text), unknown: [] };
      if (!this.chars) return { ids: [...new TextEncoder().encode(text)], unknown: [] };
      const characters = [...text];
      return {
        ids: characters.filter((char) => this.ids.has(char)).map((char) => this.ids.get(char)),
        unknown: [...new Set(characters.filter((char) => !this.ids.has(char)))]
      };
    }
    /** A function from one id after another to the text that is complete with it. */
    stream() {
      if (this.chars) return (id) => this.chars[id] ?? "�";
      const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
      const bytesOf = (id) => this.pairs ? this.pairs.bytesOf(id) : Uint8Array.of(id);
      return (id) => decoder.decode(bytesOf(id), { stream: true });
    }
    /** Ids that have a text; the model's vocabulary may be larger. */
    get size() {
      return (this.chars ?? this.pairs?.tokens)?.length ?? 256;
    }
    /** Where an empty prompt starts: after a line end, or, where there is none, after id 0. */
    get first() {
      return this.encode("\n").ids[0] ?? 0;
    }
  };
  var WORDS = new RegExp(
    String.raw`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`.replaceAll(String.raw`\s`, String.raw`\p{White_Space}`).replaceAll(String.raw`\S`, String.raw`\P{White_Space}`),
    "gu"
  );
  var BytePairs = class {
    /**
     * `symbols` are the characters that the 256 bytes are written as, `tokens` one for each id, `merges` pairs, first come
     * the most frequent, and `added` the tokens that are literal text.
     */
    constructor({ symbols, tokens, merges, added }) {
      this.symbols = symbols;
      this.tokens = tokens;
      this.added = new Set(added);
      this.ids = new Map(tokens.map((token, id) => [token, id]));
      this.ranks = new Map(merges.map((pair, rank) => [pair, rank]));
      this.bytes = new Map(symbols.map((symbol, byte) => [symbol, byte]));
      const literal = [...added].sort((one, other) => other.length - one.length);
      const escaped = literal.map((token) => token.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"));
      this.literal = escaped.length ? new RegExp(`(${escaped.join("|")})`, "u") : null;
    }
    encode(text) {
      const parts = this.literal ? text.split(this.literal) : [text];
      return parts.flatMap((part) => {
        if (this.added.has(part)) return [this.ids.get(part)];
        return (part.match(WORDS) ?? []).flatMap((word) => this.mergedIds(word));
      });
    }
    mergedIds(word) {
      const parts = Array.from(new TextEncoder().encode(word), (byte) => this.symbols[byte]);
      while (parts.length > 1) {
        let [best, at] = [Infinity, -1];
        for (let index = 0; index + 1 < parts.length; index++) {
          const rank = this.ranks.get(`${parts[index]} ${parts[index + 1]}`) ?? Infinity;
          if (rank < best) [best, at] = [rank, index];
        }
        if (at < 0) break;
        parts.splice(at, 2, parts[at] + parts[at + 1]);
      }
      return parts.map((part) => this.ids.get(part));
    }
    bytesOf(id) {
      const token = this.tokens[id];
      if (token === void 0 || this.added.has(token)) return new TextEncoder().encode(token ?? "�");
      return Uint8Array.from(token, (symbol) => this.bytes.get(symbol));
    }
  };

  // gpt/web/src/shell.js
  function startShell(nav, root, views, context) {
    const opened = /* @__PURE__ */ new Map();
    const { title } = document;
    const links = views.map(({ name, title: title2 }) => Object.assign(create("a", "", title2), { href: `#${name}` }));
    const addresses = views.map(({ name, title: title2 }) => [name, title2.toLowerCase().replaceAll(" ", "-")]);
    nav.replaceChildren(...links);
    function open() {
      const asked = location.hash.slice(1).toLowerCase();
      const view = views[Math.max(
        0,
        addresses.findIndex((names) => names.includes(asked))
      )];
      for (const link of links) link.removeAttribute("aria-current");
      links[views.indexOf(view)].setAttribute("aria-current", "page");
      document.body.dataset.view = view.name;
      document.title = `${view.title} · ${title}`;
      const known = opened.get(view);
      const place = known ?? { section: createSection(view), refresh: null };
      opened.set(view, place);
      if (!place.section.isConnected) root.replaceChildren(place.section);
      if (known) place.refresh?.();
      else place.refresh = view.show(place.section.lastChild, context);
    }
    addEventListener("hashchange", open);
    open();
    return open;
  }
  function createSection({ name, title, sentence }) {
    const parts = [create("h1", "", title), create("p", "guide", sentence), create("div", "view-body")];
    return create("section", `view view-${name}`, ...parts);
  }

  // gpt/web/src/views/attention.html
  var attention_default = '<p class="guide">\n  Each row of a matrix is one token looking back; the color in a column shows how much weight it gives the token there:\n  <code>weights[layer, head, i, j]</code> is the weight of query <code>i</code> on key <code>j</code>. A row sums to 1,\n  and the hatched half is empty because no token sees what comes after it. Look for a line just below the diagonal (a\n  head that looks at the previous token), the diagonal itself (at its own token), a strong left column (at the first\n  token, often to do nothing), other vertical stripes (one token that many look at, such as a line break), and slanted\n  streaks farther off (repeated text).\n</p>\n<div class="toolbar">\n  <div class="legend" id="legend"></div>\n  <label><input type="checkbox" id="stretch" checked> stretch small weights</label>\n</div>\n<div class="columns">\n  <section aria-labelledby="heads-title">\n    <h2 id="heads-title">All heads</h2>\n    <p class="hint">Layers down, heads across. Click one, or use the arrow keys.<span class="ablation-hint" hidden>\n      Press X to ablate it.</span></p>\n    <div class="scroll"><div class="heads" id="heads"></div></div>\n  </section>\n  <section aria-labelledby="matrix-title">\n    <div class="matrix-head">\n      <h2 id="matrix-title"></h2>\n      <label class="ablation-hint" hidden><input type="checkbox" id="ablate"> ablate</label>\n    </div>\n    <p class="hint" id="summary"></p>\n    <p class="hint">\n      Rows look (queries), columns are looked at (keys). Click to keep a row; the arrow keys move.\n      <label class="zoom">Cell size <input type="range" id="zoom" min="2" max="32" step="1"></label>\n    </p>\n    <output class="readout" id="readout" aria-live="polite"></output>\n    <div class="scroll matrix-box" id="box">\n      <div class="matrix" id="matrix">\n        <div class="corner"></div>\n        <div class="keys" id="keys" aria-hidden="true"></div>\n        <div class="queries" id="queries" aria-hidden="true"></div>\n        <div class="plot" id="plot" tabindex="0" role="application">\n          <canvas id="canvas"></canvas>\n          <div class="row-mark"></div>\n          <div class="cell-mark"></div>\n        </div>\n      </div>\n    </div>\n  </section>\n</div>\n<section aria-labelledby="text-title">\n  <h2 id="text-title">The text, seen from one token</h2>\n  <p class="hint">The framed token looks; the colors are its weights. Click another, or use the arrow keys.</p>\n  <div class="text" id="text"></div>\n  <p class="hint">The same weights as arcs: the thicker the arc, the more weight on the token where it ends.</p>\n  <div class="scroll arcs-box" tabindex="0" role="group" aria-label="arcs over the text"><svg class="arcs" id="arcs" role="img"></svg></div>\n</section>\n<section class="ablation" id="ablation" hidden></section>\n';

  // gpt/web/src/colors.js
  var RAMP = ["#eaf6fa", "#afdff6", "#79c5f0", "#4ca9e6", "#2f8bd4", "#266db9", "#275196", "#24396e", "#1c2345"].map(
    (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16))
  );
  var MAX_BITS = 8;
  var darkTheme = null;
  var redraws = /* @__PURE__ */ new Map();
  function theme() {
    if (!darkTheme) {
      darkTheme = matchMedia("(prefers-color-scheme: dark)");
      darkTheme.addEventListener("change", () => redraws.forEach((draw) => draw()));
    }
    return darkTheme;
  }
  function drawInTheme(root, draw) {
    redraws.set(root, draw);
    draw();
  }
  function colorOf(share) {
    const clamped = Math.min(1, Math.max(0, share));
    const place = (theme().matches ? 1 - clamped : clamped) * (RAMP.length - 1);
    const below = Math.min(Math.floor(place), RAMP.length - 2);
    return RAMP[below].map((low, channel) => Math.round(low + (RAMP[below + 1][channel] - low) * (place - below)));
  }
  function paint(element, share) {
    const [red, green, blue] = colorOf(share);
    const [r, g, b] = [red, green, blue].map((value) => (value / 255) ** 2.2);
    element.style.backgroundColor = `rgb(${red} ${green} ${blue})`;
    element.style.color = 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000" : "#fff";
  }
  function paintBits(element, bits) {
    paint(element, bits / MAX_BITS);
  }
  function unpaint(element) {
    element.style.backgroundColor = element.style.color = "";
  }
  function drawLegend(container, title, ticks, color = colorOf) {
    const bar = create("div", "legend-bar");
    const stops = Array.from({ length: 17 }, (_, stop) => `rgb(${color(stop / 16).join(" ")})`);
    bar.style.backgroundImage = `linear-gradient(to right, ${stops.join(", ")})`;
    const axis = create("div", "legend-axis");
    for (const [place, text] of ticks) {
      const tick = create("span", "", text);
      tick.style.left = `${100 * place}%`;
      axis.append(tick);
    }
    container.replaceChildren(create("div", "legend-title", title), bar, axis);
  }
  function drawBitsLegend(container, title) {
    const nameOf = (bits) => bits === MAX_BITS ? `${bits}+` : String(bits);
    drawLegend(
      container,
      title,
      [0, 2, 4, 6, 8].map((bits) => [bits / MAX_BITS, nameOf(bits)])
    );
  }

  // gpt/web/src/tokens.js
  function quoted(label) {
    return `'${label}'`;
  }
  function decimals(value) {
    return value > 0 && value < 5e-4 ? "<0.001" : value.toFixed(3);
  }
  function createBar(className, share) {
    const bar = create("span", className);
    bar.style.width = `${100 * share}%`;
    return bar;
  }
  function drawBars(list, entries, classOf) {
    const items = entries.map(
      ([name, probability], index) => create(
        "li",
        classOf(index),
        create("span", "name", name),
        create("span", "bar", createBar("fill", probability)),
        create("span", "value", decimals(probability))
      )
    );
    list.replaceChildren(...items);
  }
  function writeText(container, labels, role = "button") {
    return labels.map((label) => {
      const item = create("span", "token", label);
      if (role) item.setAttribute("role", role);
      container.append(item);
      if (label === "␣") container.append(create("wbr"));
      if (label === "⏎") container.append(create("br"));
      return item;
    });
  }
  function makeChoosable(container, items, columns, choose, preview = null) {
    let chosen = 0;
    items.forEach((item, index) => {
      item.dataset.index = index;
      item.tabIndex = -1;
    });
    const pick = (index, ...details) => {
      if (chosen in items) {
        items[chosen].tabIndex = -1;
        items[chosen].removeAttribute("aria-current");
      }
      chosen = index;
      items[chosen].tabIndex = 0;
      items[chosen].setAttribute("aria-current", "true");
      choose(index, ...details);
    };
    const indexAt = (event) => {
      const item = event.target.closest("[data-index]");
      return item ? Number(item.dataset.index) : null;
    };
    container.addEventListener("click", (event) => {
      const index = indexAt(event);
      if (index === null) return;
      pick(index);
      items[index].focus({ preventScroll: true });
    });
    container.addEventListener("keydown", (event) => {
      const next = keyIn(neighbors(chosen, Math.min(columns, items.length)), event);
      if (!(next in items)) return;
      event.preventDefault();
      pick(next);
      items[next].focus();
    });
    if (preview) {
      container.addEventListener("pointerover", (event) => {
        if (event.pointerType === "mouse") preview(indexAt(event));
      });
      container.addEventListener("pointerleave", () => preview(null));
    }
    return pick;
  }
  function makeReadable(container, items, columns, show) {
    let chosen = 0;
    const choose = (index) => {
      chosen = index;
      show(index);
    };
    return makeChoosable(container, items, columns, choose, (index) => show(index ?? chosen));
  }
  function neighbors(place, columns) {
    const column = place % columns;
    return {
      ArrowLeft: column > 0 ? place - 1 : place,
      ArrowRight: column < columns - 1 ? place + 1 : place,
      ArrowUp: place - columns,
      ArrowDown: place + columns,
      Home: place - column,
      End: place - column + columns - 1
    };
  }

  // gpt/web/src/views/ablation.html
  var ablation_default = '<h2>Ablation</h2>\n<p class="guide">\n  Set the output of heads to zero to see what they contribute. Look for heads without which the text surprises the model\n  much more, and for heads that make no difference. The attention above is then that of the model without them.\n</p>\n<p class="hint none" data-part="none">No head is ablated. Tick "ablate" beside the matrix, or press X on one of the heads.</p>\n<div class="chips"><span class="ablated" data-part="ablated"></span> <button type="button" class="clear" data-part="clear" hidden>Restore all</button></div>\n<output class="status" data-part="status"></output>\n<div class="effects" data-part="effects" hidden>\n  <p class="readout effect" data-part="effect"></p>\n  <div class="legend" data-part="bits-legend"></div>\n  <p class="hint">\n    The text, colored by surprise, followed by what the model writes when it always takes the most likely token; a bar\n    marks where the two texts diverge.\n  </p>\n  <div class="compared">\n    <div><h3>With all heads</h3><div class="text with-all" data-part="with-all"></div></div>\n    <div><h3>Without the ablated heads</h3><div class="text without" data-part="without"></div></div>\n  </div>\n</div>\n';

  // gpt/web/src/views/ablation.js
  var CONTINUED = 48;
  function showAblation(root, view, source, { marked, changed }) {
    const parts = fill(root, ablation_default);
    const { model, text, labels } = view;
    let heads = [];
    let running = null;
    let whole = null;
    let left = null;
    function toggle(layer, head) {
      const others = heads.filter(([one, other]) => one !== layer || other !== head);
      choose(others.length < heads.length ? others : [...heads, [layer, head]]);
    }
    function choose(chosen) {
      heads = chosen;
      marked(heads);
      parts.none.hidden = heads.length > 0;
      parts.clear.hidden = heads.length === 0;
      parts.ablated.replaceChildren(...heads.map(createChip));
      compute();
    }
    function createChip([layer, head]) {
      const name = `layer ${layer}, head ${head}`;
      return createButton("chip", `${name} ×`, () => toggle(layer, head), `restore ${name}`);
    }
    async function compute() {
      running?.abort();
      running = new AbortController();
      const { signal } = running;
      say(parts.status, "Computing…");
      try {
        whole ??= await ask([], signal);
        left = heads.length ? await ask(heads, signal) : null;
        const attention = await source.attention({ model, text, ablate: heads, signal });
        if (signal.aborted) return;
        say(parts.status, "");
        changed(attention);
      } catch (error) {
        if (!signal.aborted) say(parts.status, error.message, true);
      }
    }
    async function ask(ablate, signal) {
      const surprisal = labels.length > 1 ? await source.surprisal({ model, text, ablate, signal }) : null;
      const continuation = await source.continuation({ model, text, ablate, count: CONTINUED, signal });
      return { bits: surprisal?.bits ?? [null], mean: surprisal?.mean_bits ?? null, written: continuation.labels };
    }
    function draw() {
      parts.effects.hidden = left === null;
      if (left === null) return;
      parts.effect.textContent = left.mean === null ? "" : describeEffect(left.mean, whole.mean, heads.length);
      const parting = left.written.findIndex((label, index) => label !== whole.written[index]);
      drawText(parts.withAll, whole, parting);
      drawText(parts.without, left, parting);
      drawBitsLegend(parts.bitsLegend, "bits of surprise");
    }
    function drawText(box, { bits, written }, parting) {
      box.replaceChildren();
      const tokens = writeText(box, [...labels, ...written], null);
      tokens.forEach((token, index) => {
        if (index >= labels.length) token.classList.add("continued");
        else if (bits[index] !== null) paintBits(token, bits[index]);
      });
      if (parting >= 0) tokens[labels.length + parting].classList.add("parting");
    }
    parts.clear.addEventListener("click", () => choose([]));
    return { toggle, draw };
  }
  function describeEffect(left, whole, count) {
    const change = `${left < whole ? "−" : "+"}${Math.abs(left - whole).toFixed(3)}`;
    const without = `${left.toFixed(3)} bits per token without ${count === 1 ? "it" : "them"}`;
    return `${without}, ${whole.toFixed(3)} with all heads (${change}).`;
  }

  // gpt/web/src/views/arcs.js
  var CELL = 15;
  var FAINTEST = 0.01;
  var HIGHEST = 150;
  function showArcs(svg, labels, choose) {
    const size = labels.length;
    const top = within(size * CELL / 2 - 20, HIGHEST - 20) + 32;
    const middle = (index) => (index + 0.5) * CELL;
    const arcs = createIn(svg, "g");
    const texts = labels.map((label, index) => {
      const title = createIn(svg, "title", {}, label);
      const place = { x: middle(index), y: top + 16, "data-index": index };
      return createIn(svg, "text", place, [...label].length > 1 ? "·" : label, title);
    });
    svg.setAttribute("width", size * CELL);
    svg.setAttribute("height", top + 24);
    svg.replaceChildren(arcs, ...texts);
    svg.addEventListener("click", (event) => {
      choose(within(Math.floor((event.clientX - svg.getBoundingClientRect().left) / CELL), size - 1));
    });
    function createArc(query, key, weight) {
      const peak = top - (10 + (top - 22) * Math.sqrt((query - key) / size)) * 4 / 3;
      const [from, to] = [middle(query), middle(key)];
      const path = key === query ? `M ${from - 3} ${top} a 5 7 0 1 1 6 0` : `M ${from} ${top} C ${from} ${peak}, ${to} ${peak}, ${to} ${top}`;
      const strength = { "stroke-width": 1 + 5 * weight, opacity: 0.2 + 0.8 * weight };
      const title = createIn(svg, "title", {}, `${quoted(labels[key])} (${key}): ${decimals(weight)}`);
      return createIn(svg, "path", { d: path, "data-key": key, ...strength }, title);
    }
    return (query, weights) => {
      const seen = Array.from(weights, (weight, key) => [weight, key]).filter(([weight]) => weight >= FAINTEST);
      seen.sort(([one], [other]) => one - other);
      arcs.replaceChildren(...seen.map(([weight, key]) => createArc(query, key, weight)));
      texts.forEach((text, index) => {
        text.classList.toggle("looking", index === query);
        text.classList.toggle("later", index > query);
        text.classList.toggle("seen", weights[index] >= FAINTEST);
      });
      const box = svg.parentElement;
      const isInSight = middle(query) > box.scrollLeft && middle(query) < box.scrollLeft + box.clientWidth;
      if (!isInSight) box.scrollLeft = middle(query) - box.clientWidth / 2;
    };
  }

  // gpt/web/src/views/heads.js
  function unpack(text) {
    const bytes = decodeBase64(text);
    return Float32Array.from(
      { length: bytes.length / 2 },
      (_, index) => (bytes[2 * index] + 256 * bytes[2 * index + 1]) / 65535
    );
  }
  var Heads = class {
    constructor({ labels, layers, heads, weights }) {
      this.size = labels.length;
      this.heads = heads;
      this.count = layers * heads;
      this.weights = typeof weights === "string" ? unpack(weights) : weights;
    }
    /** The weights of a query on the keys up to itself; `head` counts those of all layers. */
    row(head, query) {
      const begin = (head * this.size * (this.size + 1) + query * (query + 1)) / 2;
      return this.weights.subarray(begin, begin + query + 1);
    }
    strongestKey(head, query) {
      const row = this.row(head, query);
      return row.indexOf(row.reduce((most, weight) => Math.max(most, weight)));
    }
    nameOf(head) {
      return `layer ${Math.floor(head / this.heads)}, head ${head % this.heads}`;
    }
    /** Where a head looks, averaged over the queries that have more than one key. */
    summarize(head) {
      const sums = { itself: 0, previous: 0, first: 0, distance: 0, entropy: 0 };
      const from = this.size > 1 ? 1 : 0;
      for (let query = from; query < this.size; query++) {
        const row = this.row(head, query);
        sums.itself += row[query];
        sums.previous += query ? row[query - 1] : 0;
        sums.first += row[0];
        row.forEach((weight, key) => {
          sums.distance += weight * (query - key);
          sums.entropy -= weight ? weight * Math.log2(weight) : 0;
        });
      }
      for (const name of Object.keys(sums)) sums[name] /= this.size - from;
      return sums;
    }
  };

  // gpt/web/src/views/attention.js
  var THUMBNAIL = 96;
  var STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  function showAttention(root, view, source = null) {
    new AttentionView(root, view, source);
  }
  var AttentionView = class {
    constructor(root, view, source) {
      this.parts = fill(root, attention_default);
      this.labels = view.labels;
      this.size = view.labels.length;
      this.head = (view.layer ?? 0) * view.heads + (view.head ?? 0);
      this.query = this.size - 1;
      this.key = 0;
      this.pointed = null;
      this.heads = new Heads(view);
      root.style.setProperty("--size", this.size);
      const { text, arcs, queries, keys, box } = this.parts;
      this.ticks = [queries, keys].map((axis) => this.labels.map((label) => this.addTick(axis, label)));
      this.tokens = writeText(text, this.labels);
      this.thumbnails = this.addThumbnails(view);
      this.drawArcs = showArcs(arcs, this.labels, (query) => this.chooseQuery(query));
      this.ablation = source && this.allowAblation(root, view, source);
      this.chooseHead = makeChoosable(this.parts.heads, this.thumbnails, view.heads, (head) => {
        this.head = head;
        this.drawChosenHead();
      });
      this.chooseQuery = makeChoosable(
        text,
        this.tokens,
        this.size,
        (query, key = this.heads.strongestKey(this.head, query)) => this.chooseCell(query, key),
        (key) => this.point(key === null ? null : { query: this.query, key })
      );
      this.listen();
      this.setCellSize(Math.min(28, Math.max(4, Math.floor((box.clientWidth - 48) / this.size))));
      drawInTheme(root, () => this.draw());
      this.chooseHead(this.head);
      this.chooseQuery(this.query);
    }
    addTick(axis, label) {
      const tick = create("span", label.length > 1 ? "long" : "", label);
      axis.append(tick);
      return tick;
    }
    addThumbnails({ layers, heads }) {
      const grid = this.parts.heads;
      grid.style.setProperty("--heads", heads);
      grid.append(create("span"), ...Array.from({ length: heads }, (_, head) => create("span", "", head)));
      const buttons = Array.from(
        { length: layers * heads },
        (_, head) => createButton("thumbnail", create("canvas"), null, this.heads.nameOf(head))
      );
      buttons.forEach((button, head) => {
        if (head % heads === 0) grid.append(create("span", "", head / heads));
        grid.append(button);
      });
      return buttons;
    }
    allowAblation(root, view, source) {
      const { ablation: section, ablate, heads } = this.parts;
      for (const element of [section, ...root.querySelectorAll(".ablation-hint")]) element.hidden = false;
      const ablation = showAblation(section, view, source, {
        marked: (ablated) => this.markAblated(ablated.map(([layer, head]) => layer * view.heads + head)),
        changed: (changed) => {
          this.heads = new Heads(changed);
          this.draw();
        }
      });
      const toggle = () => ablation.toggle(Math.floor(this.head / view.heads), this.head % view.heads);
      ablate.addEventListener("change", toggle);
      heads.addEventListener("keydown", (event) => event.key.toLowerCase() === "x" && toggle());
      return ablation;
    }
    markAblated(ablated) {
      this.thumbnails.forEach((button, head) => {
        const isAblated = ablated.includes(head);
        button.classList.toggle("ablated-head", isAblated);
        button.setAttribute("aria-label", this.heads.nameOf(head) + (isAblated ? ", ablated" : ""));
      });
      this.showWhetherAblated();
    }
    showWhetherAblated() {
      this.parts.ablate.checked = this.thumbnails[this.head].classList.contains("ablated-head");
    }
    listen() {
      const { plot, zoom, stretch } = this.parts;
      plot.addEventListener("pointermove", (event) => {
        if (event.pointerType === "mouse") this.point(this.cellAt(event));
      });
      plot.addEventListener("pointerleave", () => this.point(null));
      plot.addEventListener("click", (event) => {
        const { query, key } = this.cellAt(event);
        this.chooseQuery(query, key);
      });
      plot.addEventListener("keydown", (event) => {
        const step = keyIn(STEPS, event);
        if (!step) return;
        event.preventDefault();
        this.chooseQuery(within(this.query + step[0], this.size - 1), within(this.key + step[1], this.size - 1));
      });
      zoom.addEventListener("input", () => {
        this.setCellSize(Number(zoom.value));
        this.reveal();
      });
      stretch.addEventListener("change", () => this.draw());
    }
    shareOf(weight) {
      return this.parts.stretch.checked ? Math.sqrt(weight) : weight;
    }
    /** Draws all that depends on the colors or on the weights. */
    draw() {
      const step = Math.ceil(this.size / THUMBNAIL);
      const inks = this.inks();
      this.thumbnails.forEach((button, head) => this.drawHead(button.firstChild, head, step, inks));
      const ticks = this.parts.stretch.checked ? [0, 0.02, 0.1, 0.25, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1];
      drawLegend(
        this.parts.legend,
        "weight",
        ticks.map((weight) => [this.shareOf(weight), String(weight)])
      );
      this.drawChosenHead();
      this.ablation?.draw();
    }
    inks() {
      return Array.from({ length: 256 }, (_, share) => [...colorOf(share / 255), 255]);
    }
    /** Draws the lower triangle, the largest of `step` x `step` weights to a pixel so that thin lines stay. */
    drawHead(canvas, head, step, inks) {
      const side = Math.ceil(this.size / step);
      const largest = new Float32Array(side * side).fill(-1);
      for (let query = 0; query < this.size; query++) {
        const row = Math.floor(query / step) * side;
        this.heads.row(head, query).forEach((weight, key) => {
          const pixel = row + Math.floor(key / step);
          largest[pixel] = Math.max(largest[pixel], weight);
        });
      }
      const image = new ImageData(side, side);
      largest.forEach((weight, pixel) => {
        if (weight >= 0) image.data.set(inks[Math.round(255 * this.shareOf(weight))], 4 * pixel);
      });
      canvas.width = canvas.height = side;
      canvas.getContext("2d").putImageData(image, 0, 0);
    }
    drawChosenHead() {
      const { matrixTitle, summary, plot, canvas } = this.parts;
      const { itself, previous, first, distance, entropy } = this.heads.summarize(this.head);
      const name = this.heads.nameOf(this.head);
      matrixTitle.textContent = name.replace("l", "L");
      summary.textContent = `Average weight on the previous token ${decimals(previous)}, on itself ${decimals(itself)}, on the first ${decimals(first)}; it looks back ${distance.toFixed(1)} positions, with an entropy of ${entropy.toFixed(1)} bits.`;
      plot.setAttribute("aria-label", `weights of ${name}; the arrow keys move through them`);
      this.drawHead(canvas, this.head, 1, this.inks());
      this.showWhetherAblated();
      this.showCell();
    }
    chooseCell(query, key) {
      Object.assign(this, { query, key, pointed: null });
      this.showCell();
      this.reveal();
    }
    point(cell) {
      this.pointed = cell;
      this.showCell();
    }
    /** Shows the cell under the mouse, or else the chosen one. */
    showCell() {
      const { query, key } = this.pointed ?? this;
      const { plot, readout, arcs } = this.parts;
      const row = this.heads.row(this.head, query);
      plot.style.setProperty("--query", query);
      plot.style.setProperty("--key", key);
      this.ticks.forEach((ticks, axis) => {
        ticks.forEach((tick, index) => tick.classList.toggle("on", index === [query, key][axis]));
      });
      const [from, to] = [query, key].map((index) => `${quoted(this.labels[index])} (${index})`);
      readout.textContent = `from ${from} to ${to}: ${key > query ? "hidden, it comes later" : decimals(row[key])}`;
      this.tokens.forEach((token, index) => {
        if (index <= query) paint(token, this.shareOf(row[index]));
        else unpaint(token);
        token.classList.toggle("later", index > query);
        token.classList.toggle("looking", index === query);
        token.classList.toggle("pointed", index === key);
      });
      this.drawArcs(query, row);
      arcs.setAttribute("aria-label", `arcs from ${from} to what it attends to`);
    }
    /** Scrolls the matrix, and never the page, until the chosen cell is in sight. */
    reveal() {
      const { plot, box, queries, keys } = this.parts;
      const mark = plot.querySelector(".cell-mark").getBoundingClientRect();
      const frame = box.getBoundingClientRect();
      const [left, top] = [frame.left + queries.offsetWidth, frame.top + keys.offsetHeight];
      const [right, bottom] = [frame.left + box.clientWidth, frame.top + box.clientHeight];
      box.scrollLeft += Math.min(0, mark.left - left) + Math.max(0, mark.right - right);
      box.scrollTop += Math.min(0, mark.top - top) + Math.max(0, mark.bottom - bottom);
    }
    setCellSize(pixels) {
      const { matrix, zoom } = this.parts;
      matrix.style.setProperty("--cell", `${pixels}px`);
      matrix.classList.toggle("unlabelled", pixels < 9);
      zoom.value = pixels;
    }
    cellAt(event) {
      const { left, top, width, height } = this.parts.plot.getBoundingClientRect();
      const along = (offset, length) => within(Math.floor(offset / length * this.size), this.size - 1);
      return { query: along(event.clientY - top, height), key: along(event.clientX - left, width) };
    }
  };

  // gpt/web/src/views/lens.html
  var lens_default = `<p class="guide">
  Read a column from top to bottom: under each token of the text is the most likely next token, first from the
  embeddings alone, then after each block; the last row is the model's own prediction. The stronger the color, the
  higher the probability; a framed cell with a dot is the actual next token. Look for the block after which words
  become predictable.
</p>
<div class="toolbar">
  <div class="legend" id="legend"></div>
  <span class="sample"><span class="cell came">e</span> is the actual next token</span>
</div>
<p class="hint">Point at a cell to see its top candidates; click to keep it selected; the arrow keys move.</p>
<div class="scroll"><table class="lens" id="lens-table" role="grid"></table></div>
<section class="details" aria-labelledby="details-title" aria-live="polite">
  <h2 id="details-title"></h2>
  <p class="readout" id="readout"></p>
  <div class="lists">
    <div><h3 id="top-title"></h3><ol class="bars" id="top"></ol></div>
    <div><h3 id="rows-title"></h3><ol class="bars" id="rows"></ol></div>
  </div>
</section>
`;

  // gpt/web/src/views/lens.js
  function showLens(root, { labels, rows, top: candidates, next, next_probability: nextProbability }) {
    const parts = fill(root, lens_default);
    const size = labels.length;
    const cells = rows.map((_, row) => labels.map((_2, position) => createCell(row, position)));
    function createCell(row, position) {
      const [label, probability] = candidates[row][position][0];
      const came2 = label === next[position];
      const cell = create("td", came2 ? "cell came" : "cell", label);
      cell.setAttribute("role", "gridcell");
      cell.setAttribute("aria-label", `${label}, ${decimals(probability)}${came2 ? ", the actual next token" : ""}`);
      return cell;
    }
    function draw() {
      const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => [share, String(share)]);
      drawLegend(parts.legend, "probability of the top candidate", ticks);
      cells.forEach((line, row) => line.forEach((cell, position) => paint(cell, candidates[row][position][0][1])));
    }
    function showDetails(index) {
      const [row, position] = [Math.floor(index / size), index % size];
      const came2 = next[position];
      const entries = candidates[row][position];
      parts.detailsTitle.textContent = `${rows[row]}, after ${quoted(labels[position])} (${position})`;
      parts.readout.textContent = came2 === null ? "The text ends here, so there is no next token." : `The next token is ${quoted(came2)}; here its probability is ${decimals(nextProbability[row][position])}.`;
      parts.topTitle.textContent = `The ${entries.length} most likely`;
      drawBars(parts.top, entries, (entry) => entries[entry][0] === came2 ? "came" : "");
      parts.rowsTitle.textContent = came2 === null ? "" : `Probability of ${quoted(came2)}, row by row`;
      const byRow = came2 === null ? [] : rows.map((name, entry) => [name, nextProbability[entry][position]]);
      drawBars(parts.rows, byRow, (entry) => entry === row ? "chosen" : "");
    }
    const heads = labels.map((label, position) => {
      const head = create("th", "", create("span", "position", position), label);
      return Object.assign(head, { scope: "col" });
    });
    const came = next.map((label) => create("td", "", label ?? ""));
    parts.lensTable.append(
      create("thead", "", createRow("text", heads)),
      create("tbody", "", ...rows.map((name, row) => createRow(name, cells[row]))),
      create("tfoot", "", createRow("actual next", came))
    );
    const choose = makeReadable(parts.lensTable, cells.flat(), size, showDetails);
    drawInTheme(root, draw);
    choose(size * (rows.length - 1));
  }
  function createRow(name, cells) {
    return create("tr", "", Object.assign(create("th", "", name), { scope: "row" }), ...cells);
  }

  // gpt/web/src/views/reading.html
  var reading_default = '<form class="prompt" data-part="form">\n  <label for="reading-text">Text to read</label>\n  <textarea\n    id="reading-text"\n    rows="3"\n    spellcheck="false"\n    autocapitalize="off"\n    autocomplete="off"\n    placeholder="Type or paste a text, or write one with the model first."\n  ></textarea>\n  <div class="actions">\n    <button type="submit">Read</button>\n    <span class="hint">The text written last, or another. Ctrl+Enter: read.</span>\n  </div>\n</form>\n<output class="status" data-part="status"></output>\n<div class="reading-body" data-part="body"></div>\n';

  // gpt/web/src/views/surprisal.html
  var surprisal_default = `<p class="guide">
  Each token is colored by its surprisal, <code>-log2</code> of the probability that the model gave it: 0 bits is
  certain, 1 bit a chance of 1 in 2, 8 bits 1 in 256. Look for the first letters of words and names, which surprise the
  model most, and for words that become certain after a few letters.
</p>
<p class="figure"><strong id="mean"></strong> bits per token on average (for a character model, bits per character)</p>
<div class="toolbar">
  <div class="legend" id="legend"></div>
  <span class="sample"><span class="came">e</span> in a list is the actual token</span>
</div>
<p class="hint">Point at a token to see what the model expected there; click to keep it selected; the left and right arrow keys move.</p>
<div class="text" id="text"></div>
<section class="details" aria-labelledby="details-title" aria-live="polite">
  <h2 id="details-title"></h2>
  <p class="readout" id="readout"></p>
  <div class="lists">
    <div><h3>The model's own distribution</h3><ol class="bars" id="before"></ol></div>
    <div><h3 id="after-title"></h3><ol class="bars" id="after"></ol></div>
  </div>
</section>
`;

  // gpt/web/src/views/surprisal.js
  function showSurprisal(root, { labels, bits, before, after, mean_bits: mean, settings }) {
    const parts = fill(root, surprisal_default);
    const tokens = writeText(parts.text, labels);
    function draw() {
      drawBitsLegend(parts.legend, "bits");
      tokens.forEach((token, index) => bits[index] !== null && paintBits(token, bits[index]));
    }
    function isNeverPicked(index) {
      const isWhole = after[index].length < before[index].length;
      return isWhole && after[index].every(([label]) => label !== labels[index]);
    }
    function describe(index) {
      if (bits[index] === null) return "This is the first token: there is nothing to predict it from.";
      const rest = isNeverPicked(index) ? " Sampling with these settings never picks it." : "";
      return `${bits[index].toFixed(2)} bits; its probability was ${decimals(2 ** -bits[index])}.${rest}`;
    }
    function showDetails(index) {
      parts.detailsTitle.textContent = `${quoted(labels[index])} (${index})`;
      parts.readout.textContent = describe(index);
      for (const [list, entries] of [
        [parts.before, before[index]],
        [parts.after, after[index]]
      ]) {
        drawBars(list, entries, (entry) => entries[entry][0] === labels[index] ? "came" : "");
      }
    }
    tokens.forEach((token, index) => {
      token.classList.toggle("unknown", bits[index] === null);
      token.setAttribute("aria-label", labels[index] + (bits[index] === null ? "" : `, ${bits[index].toFixed(1)} bits`));
    });
    parts.mean.textContent = mean.toFixed(3);
    parts.afterTitle.textContent = `With ${settings}`;
    const choose = makeReadable(parts.text, tokens, labels.length, showDetails);
    drawInTheme(root, draw);
    choose(Math.min(1, labels.length - 1));
  }

  // gpt/web/src/views/trace.html
  var trace_default = '<p class="guide">\n  Every operation of one forward pass, from the ids to the logits: look for how the shape changes where the heads are\n  split and joined again, for the scores that grow with the square of the text, and for the stream whose spread grows\n  from block to block.\n</p>\n<p class="hint" data-part="axes"></p>\n<div class="trace">\n  <div class="operations" data-part="list" role="listbox" aria-label="operations; the up and down arrow keys move"></div>\n  <section class="details" aria-live="polite">\n    <h2 class="operation-title" data-part="title"></h2>\n    <p data-part="about"></p>\n    <table class="operation-facts" data-part="facts"></table>\n    <figure class="heat" data-part="heat">\n      <canvas class="heat-canvas" data-part="canvas"></canvas>\n      <figcaption class="hint" data-part="caption"></figcaption>\n    </figure>\n    <div class="legend" data-part="legend"></div>\n  </section>\n</div>\n';

  // gpt/web/src/views/trace.js
  var AXES = {
    B: "texts of the batch",
    T: "positions of the text",
    S: "positions that are looked at",
    C: "width of the stream",
    H: "heads",
    K: "key and value heads",
    D: "width of a head",
    F: "hidden units",
    V: "different tokens"
  };
  var NEGATIVE = [208, 84, 24];
  function showTrace(root, { operations }) {
    const parts = fill(root, trace_default);
    const items = operations.map(createItem);
    const readers = operations.map(() => []);
    operations.forEach(({ inputs }, number) => inputs.forEach((input) => readers[input].push(number)));
    let chosen = 0;
    function choose(number) {
      chosen = number;
      const operation = operations[number];
      items.forEach((item, index) => {
        item.setAttribute("aria-selected", String(index === number));
        item.classList.toggle("is-input", operation.inputs.includes(index));
        item.classList.toggle("is-reader", readers[number].includes(index));
      });
      parts.title.textContent = operation.name;
      parts.about.textContent = operation.about;
      const facts = factsOf(operation, operation.inputs.map(createLink), readers[number].map(createLink));
      parts.facts.replaceChildren(...facts.filter(([, value]) => value.length).map(createFact));
      drawHeat(parts, operation);
    }
    function createLink(number) {
      return createButton("link", operations[number].about, () => {
        pick(number);
        items[number].focus();
      });
    }
    const letters = new Set(operations.flatMap(({ axes: axes2 }) => axes2.split(/[ *]/)));
    const axes = Object.entries(AXES).filter(([axis]) => letters.has(axis));
    parts.axes.textContent = axes.map(([axis, about]) => `${axis} ${about}`).join(" · ");
    let group = null;
    items.forEach((item, number) => {
      const title = groupOf(operations, number);
      if (title !== group) parts.list.append(create("div", "group", title));
      group = title;
      parts.list.append(item);
    });
    const pick = makeChoosable(parts.list, items, 1, choose);
    pick(
      Math.max(
        0,
        operations.findIndex(({ about }) => about.startsWith("attention weights"))
      )
    );
    parts.list.scrollTop = items[chosen].offsetTop - parts.list.offsetTop - parts.list.clientHeight / 2;
    drawInTheme(root, () => drawHeat(parts, operations[chosen]));
  }
  function groupOf(operations, number) {
    const { layer } = operations[number];
    if (layer !== null) return `Block ${layer}`;
    return operations.slice(0, number).some((other) => other.layer !== null) ? "After the blocks" : "Before the blocks";
  }
  function createItem({ about, shape, axes, is_view: isView }) {
    const words = [create("span", "about", about), create("span", "shape", namedShape(axes, shape))];
    const item = create("div", isView ? "operation is-view" : "operation", ...words);
    item.setAttribute("role", "option");
    return item;
  }
  function factsOf(operation, inputs, readers) {
    const { axes, shape, dtype, bytes, is_view: isView, flops, source, statistics: values, parameters } = operation;
    const count = (amount) => amount.toLocaleString("en");
    const isMeasured = values && values.mean !== null;
    return [
      ["shape", `${namedShape(axes, shape)} ${dtype}`],
      ["module", operation.module || "the model itself"],
      ["file", source],
      ["reads", inputs],
      ["read by", readers],
      ...parameters.map((use) => ["parameter", `${use.name}, ${namedShape(use.axes, use.shape)}`]),
      ["bytes", isView ? `${count(bytes)}, shared with what it reads` : count(bytes)],
      ["FLOPs", flops ? count(flops) : ""],
      ["mean, std", isMeasured ? `${rounded(values.mean)}, ${rounded(values.std)}` : ""],
      ["min, max", isMeasured ? `${rounded(values.min)}, ${rounded(values.max)}` : ""],
      ["not finite", values?.infinite ? `${count(values.infinite)} values` : ""]
    ];
  }
  function createFact([name, value]) {
    const words = [value].flat().flatMap((part, index) => index ? [", ", part] : [part]);
    return createRow(name, [create("td", "", ...words)]);
  }
  function drawHeat({ heat: figure, canvas, caption, legend }, { heat, shape }) {
    figure.hidden = legend.hidden = !heat;
    if (!heat) return;
    const { rows, columns, scale } = heat;
    const cells = atob(heat.cells);
    const image = new ImageData(columns, rows);
    for (let index = 0; index < cells.length; index++) {
      const step = cells.charCodeAt(index);
      if (step > 0) image.data.set([...signedColorOf((step - 128) / 127), 255], 4 * index);
    }
    Object.assign(canvas, { width: columns, height: rows });
    canvas.getContext("2d").putImageData(image, 0, 0);
    canvas.style.aspectRatio = `${columns} / ${rows}`;
    canvas.style.maxWidth = `${Math.min(columns * 16, Math.round(columns / rows * 320))}px`;
    caption.textContent = describeHeat(shape, heat);
    const ticks = [
      [0, rounded(-scale)],
      [0.5, "0"],
      [1, rounded(scale)]
    ];
    drawLegend(legend, "value", ticks, (share) => signedColorOf(2 * share - 1));
  }
  function describeHeat(shape, { rows, columns, height, width }) {
    const others = shape.slice(0, -2);
    const slice = `[${[...others.map(() => 0), ":", ":"].join(", ")}]`;
    const isPart = others.some((size) => size > 1);
    const part = isPart ? `The first ${height} × ${width} of its values, ${slice}` : "Its values";
    const mean = `; a cell is the mean of about ${Math.round(height * width / (rows * columns))}`;
    const pooled = rows < height || columns < width ? mean : "";
    return `${part}, rows down and columns across${pooled}. Nothing is drawn where a value is not finite.`;
  }
  function namedShape(axes, shape) {
    const names = axes.split(" ");
    return shape.map((size, axis) => names[axis] === String(size) ? size : `${names[axis]} ${size}`).join(" × ");
  }
  function rounded(value) {
    return String(Number(value.toPrecision(4)));
  }
  function signedColorOf(value) {
    if (value >= 0) return colorOf(value);
    return colorOf(0).map((channel, index) => Math.round(channel + (NEGATIVE[index] - channel) * Math.min(1, -value)));
  }

  // gpt/web/src/views/reading.js
  var READINGS = {
    attention: { title: "Attention", least: 1, most: 128, show: showAttention, guide: attention_default },
    lens: { title: "Logit lens", least: 1, most: 128, show: showLens, guide: lens_default },
    surprisal: { title: "Surprisal", least: 2, most: 1024, show: showSurprisal, guide: surprisal_default },
    trace: { title: "Shapes", least: 1, most: 128, show: showTrace, guide: trace_default }
  };
  function readingView(name, windowOf) {
    const { title, guide } = READINGS[name];
    const show = (root, context) => {
      const reading = new Reading(root, name, context, windowOf);
      return () => reading.follow();
    };
    const words = new DOMParser().parseFromString(guide, "text/html").querySelector(".guide").textContent;
    return { name, title, sentence: words.trim().replace(/\s+/g, " "), show };
  }
  var Reading = class {
    constructor(root, name, context, windowOf) {
      this.reading = READINGS[name];
      this.parts = fill(root, reading_default);
      this.ask = (request) => context.source[name](request);
      this.context = context;
      this.window = () => Math.min(this.reading.most, windowOf(context));
      this.running = null;
      this.last = null;
      this.reader = null;
      const { form } = this.parts;
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        this.read();
      });
      form.addEventListener("keydown", (event) => isSubmit(event) && form.requestSubmit());
      this.follow();
    }
    /** Reads the text written last where that has changed, and the same one with another model. */
    follow() {
      const { text, model } = this.context;
      const field = this.parts.readingText;
      const isSame = text === this.last;
      if (isSame && model === this.reader) return;
      this.last = text;
      if (!isSame) field.value = [...text].slice(-this.window()).join("");
      if ([...field.value].length >= this.reading.least) this.read();
    }
    /** Reads what the field has; of a text longer than the window only the end. */
    async read() {
      const { readingText, status, body } = this.parts;
      this.running?.abort();
      this.running = new AbortController();
      const { signal } = this.running;
      this.reader = this.context.model;
      const most = this.window();
      const characters = [...readingText.value];
      const request = { model: this.reader, text: characters.slice(-most).join("") };
      say(status, "Reading…");
      try {
        const answer = await this.ask({ ...request, signal });
        if (signal.aborted) return;
        say(status, characters.length > most ? `Only the last ${most} of ${characters.length} characters are read.` : "");
        this.reading.show(body, { ...answer, ...request }, this.context.source);
      } catch (error) {
        if (!signal.aborted) say(status, error.message, true);
      }
    }
  };

  // gpt/web/src/views/parting.js
  function markParting(passages) {
    const [first, second] = passages.map(({ tokens }) => tokens.map(({ text }) => text).join(""));
    const both = Math.min(first.length, second.length);
    let place = 0;
    while (place < both && first[place] === second[place]) place++;
    for (const passage of passages) passage.mark(place < both ? tokenAt(passage.tokens, place) : null);
  }
  function tokenAt(tokens, place) {
    let end = 0;
    return tokens.findIndex(({ text }) => {
      end += text.length;
      return end > place;
    });
  }

  // gpt/web/src/views/passage.html
  var passage_default = '<div class="reading">\n  <section>\n    <div class="legend" data-part="legend"></div>\n    <div class="text written" data-part="written" role="group" aria-label="the text; the arrow keys move through it"></div>\n  </section>\n  <section class="details">\n    <h2 class="choice-title" data-part="title">One character</h2>\n    <p class="readout choice" data-part="choice">Point at a character of the text, or move through it with the arrow keys.</p>\n    <div data-part="possible" hidden>\n      <h3>What else was possible</h3>\n      <p class="hint keys-of-bars">\n        <span class="key-of-own"></span> by the model\n        <span class="key-of-sampled"></span> with <span class="sampling" data-part="sampling"></span>\n      </p>\n      <ol class="bars pairs" data-part="pairs"></ol>\n      <p class="hint">Click one to continue the text from it.</p>\n    </div>\n  </section>\n</div>\n';

  // gpt/web/src/views/passage.js
  var TICKS = [
    [0, "1"],
    [0.25, "0.25"],
    [0.5, "0.06"],
    [0.75, "0.016"],
    [1, "0.004"]
  ];
  var Passage = class {
    constructor(root, branch) {
      this.parts = fill(root, passage_default);
      this.branch = branch;
      this.settings = "";
      this.tokens = [];
      this.items = [];
      this.chosen = null;
      const { title, choice, written, legend } = this.parts;
      this.idle = [title.textContent, choice.textContent];
      this.pick = makeChoosable(
        written,
        this.items,
        Infinity,
        (index) => {
          this.chosen = index;
          this.show(index);
        },
        (index) => this.show(index ?? this.chosen)
      );
      drawInTheme(root, () => {
        drawLegend(legend, "probability", TICKS);
        this.items.forEach((_, index) => this.tint(index));
      });
    }
    add(tokens) {
      const { written } = this.parts;
      const isAtEnd = written.scrollTop + written.clientHeight >= written.scrollHeight - 8;
      written.append(...tokens.flatMap((token) => this.addItem(token)));
      if (isAtEnd) written.scrollTop = written.scrollHeight;
    }
    addItem(token) {
      const { label, text, probability } = token;
      const item = create("span", token.isGiven ? "token given" : "token", text === "\n" ? "⏎" : text || "·");
      item.classList.toggle("picked", Boolean(token.isPicked));
      item.classList.toggle("unknown", probability === null);
      item.setAttribute("role", "button");
      item.setAttribute("aria-label", probability === null ? label : `${label}, probability ${decimals(probability)}`);
      item.tabIndex = -1;
      item.dataset.index = String(this.items.length);
      this.tokens.push(token);
      this.items.push(item);
      this.tint(this.items.length - 1);
      return text === "\n" ? [item, "\n"] : [item];
    }
    /** Removes the tokens from `length` on. */
    truncate(length) {
      const { tokens, items } = this;
      const { written } = this.parts;
      tokens.length = items.length = Math.min(length, items.length);
      while (written.lastChild && written.lastChild !== items.at(-1)) written.lastChild.remove();
      if (tokens.at(-1)?.text === "\n") written.append("\n");
      if (this.chosen !== null && this.chosen >= length) {
        this.chosen = null;
        this.show(null);
      }
    }
    /** Lets the tab key reach the text. */
    settle() {
      if (!this.items.length || this.items.some((item) => item.tabIndex === 0)) return;
      const first = this.tokens.findIndex(({ isGiven }) => !isGiven);
      this.pick(first < 0 ? this.items.length - 1 : first);
    }
    focus(index) {
      this.pick(index);
      this.items[index].focus({ preventScroll: true });
    }
    /** Draws a bar before one token, or none. */
    mark(index) {
      this.parts.written.querySelector(".parting")?.classList.remove("parting");
      this.items[index]?.classList.add("parting");
    }
    tint(index) {
      const { probability } = this.tokens[index];
      if (probability !== null) paintBits(this.items[index], -Math.log2(probability));
    }
    show(index) {
      const { title, choice, possible, sampling, pairs } = this.parts;
      const token = this.tokens[index];
      possible.hidden = !token?.own.length;
      title.textContent = token ? `${quoted(token.label)} (${index})` : this.idle[0];
      choice.textContent = token ? describeChoice(token) : this.idle[1];
      if (!token) return;
      sampling.textContent = this.settings;
      const entries = [...token.own];
      if (entries.length && entries.every(([id]) => id !== token.id)) {
        entries.push([token.id, token.label, token.probability]);
      }
      pairs.replaceChildren(...entries.map((entry) => createAlternative(token, entry, (id) => this.branch(index, id))));
    }
  };
  function describeChoice({ probability, isGiven, isPicked }) {
    if (probability === null) return "There is nothing before it that the model could predict it from.";
    const origin = isGiven ? "; it is part of the prompt" : isPicked ? "; you chose it" : "";
    return `Its probability was ${decimals(probability)}${origin}.`;
  }
  function createAlternative({ id: came, chance, own, sampled: kept }, [id, label, probability], branch) {
    const [, , sampled] = kept.find(([other]) => other === id) ?? [id, label, id === came ? chance : 0];
    const isKnown = id === came || kept.length < own.length;
    const item = create(
      "li",
      sampled ? "" : "dropped",
      createButton("", label, () => branch(id), `continue with ${label}`),
      create("span", "pair", createBar("own", probability), createBar("fill", sampled)),
      create("span", "value", decimals(probability)),
      create("span", "value sampled", sampled ? decimals(sampled) : isKnown ? "never" : "")
    );
    item.classList.toggle("came", id === came);
    return item;
  }

  // gpt/web/src/views/write.html
  var write_default = '<form class="prompt" data-part="form">\n  <label for="prompt">Prompt</label>\n  <textarea\n    id="prompt"\n    rows="3"\n    spellcheck="false"\n    autocapitalize="off"\n    autocomplete="off"\n    placeholder="Empty: the text begins after a line end."\n  ></textarea>\n  <div class="settings">\n    <label>Characters <input type="number" id="count" min="1" step="1" required></label>\n    <label title="Below 1 makes likely characters more likely; 0 always takes the most likely one.">\n      Temperature <input type="number" id="temperature" min="0" max="2" step="any" required>\n    </label>\n    <label title="The same seed gives the same text, here and in sample.py.">\n      Seed <input type="number" id="seed" min="0" max="4294967295" step="1" required>\n    </label>\n  </div>\n  <div class="actions">\n    <button type="submit" id="write-button">Write</button>\n    <button type="button" id="stop" disabled>Stop</button>\n    <button type="button" id="another">Next seed</button>\n    <span class="hint keys-hint">Ctrl+Enter: write. Escape: stop.</span>\n  </div>\n</form>\n<div class="panes" data-part="panes"></div>\n';

  // gpt/web/src/views/write.js
  var WRITE = {
    name: "write",
    title: "Write",
    sentence: "The stronger a character's color, the less likely it was. Look for the first letters of words, where the model has many choices, and for the letters after them, which are almost certain. Point at a character to see what else was possible there."
  };
  var Writer = class {
    constructor(root, start, source, models, { changed = null, written = null } = {}) {
      this.parts = fill(root, write_default);
      this.source = source;
      this.written = written;
      this.filters = Object.entries(start.filters).map(([name, schema]) => ({ ...schema, field: fieldOf(name) }));
      const { form, seed, panes, stop, another, count } = this.parts;
      this.fields = { prompt: this.parts.prompt, count, temperature: this.parts.temperature };
      for (const filter of this.filters) {
        this.fields[filter.field] = createNumber(filter);
        seed.parentElement.before(createControl(filter, this.fields[filter.field]));
      }
      this.fields.seed = seed;
      this.panes = models.map(({ name, heading = "" }) => new Pane(this, name, heading));
      panes.append(...this.panes.map(({ element }) => element));
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        this.start();
      });
      form.addEventListener("input", () => changed?.(this.values()));
      stop.addEventListener("click", () => this.stop());
      another.addEventListener("click", () => {
        seed.value = (Number(seed.value) + 1) % 2 ** 32;
        form.dispatchEvent(new Event("input"));
        this.start();
      });
      document.addEventListener("keydown", (event) => {
        if (!root.isConnected) return;
        if (event.key === "Escape") this.stop();
        if (isSubmit(event)) {
          event.preventDefault();
          form.requestSubmit();
        }
      });
      count.max = start.most;
      this.fill(start);
    }
    /** Writes values into the form. */
    fill(values) {
      for (const [name, field] of Object.entries(this.fields)) field.value = values[name];
    }
    values() {
      return Object.fromEntries(Object.entries(this.fields).map(([name, field]) => [name, field.value]));
    }
    /** Starts all texts anew, unless a setting is wrong, which the form shows. */
    start() {
      this.stop();
      if (!this.parts.form.reportValidity()) return;
      const { prompt, ...numbers } = this.values();
      const settings = Object.fromEntries(
        Object.entries(numbers).map(([name, value]) => [camelCase(name), Number(value)])
      );
      for (const pane of this.panes) pane.start(prompt, settings, this.describe(settings));
    }
    describe(settings) {
      const chosen = this.filters.filter((filter) => settings[camelCase(filter.field)] !== filter.default);
      const words = chosen.map(({ field }) => `${field} ${settings[camelCase(field)]}`);
      return [`temperature ${settings.temperature}`, ...words].join(", ");
    }
    stop() {
      for (const { running } of this.panes) running?.abort();
    }
    /** Follows a text that grows or has ended. */
    follow() {
      this.parts.stop.disabled = this.panes.every(({ running }) => !running);
    }
  };
  var Pane = class {
    constructor(writer, model, heading) {
      this.writer = writer;
      this.model = model;
      this.running = null;
      this.status = create("output", "status");
      const body = create("div");
      this.element = create("div", "pane", heading, this.status, body);
      this.passage = new Passage(body, (index, id) => this.branch(index, id));
    }
    start(prompt, settings, words) {
      this.settings = settings;
      this.passage.settings = words;
      this.passage.truncate(0);
      this.run(prompt, settings.count, 0);
    }
    /** Replaces a token, and continues from there; the random numbers of the seed begin anew. */
    branch(index, id) {
      this.running?.abort();
      const { tokens } = this.passage;
      const count = this.settings.count - tokens.slice(0, index + 1).filter(({ isGiven }) => !isGiven).length;
      this.passage.truncate(index);
      this.run([...tokens.map((token) => token.id), id], Math.max(0, count), index);
    }
    /** Lets the text grow, and says how that went. */
    async run(prompt, count, known) {
      const { source, written } = this.writer;
      const control = new AbortController();
      this.running = control;
      this.writer.follow();
      say(this.status, "Writing…");
      const began = performance.now();
      let added = 0;
      const add = (tokens) => {
        if (!control.signal.aborted) added += this.add(tokens, Array.isArray(prompt) ? known : null);
      };
      let fault = null;
      try {
        const request = { ...this.settings, model: this.model(), prompt, count, known, signal: control.signal };
        await Promise.race([source.write(request, add), untilAborted(control.signal)]);
      } catch (error) {
        if (error.name !== "AbortError") fault = error.message;
      }
      if (this.running !== control) return;
      this.running = null;
      this.writer.follow();
      const seconds = (performance.now() - began) / 1e3;
      say(this.status, fault ?? describeRun(added, this.settings.seed, seconds, source.pace ?? ""), fault !== null);
      this.passage.settle();
      written?.(this.passage.tokens.map(({ text }) => text).join(""));
    }
    /** Adds tokens, the one at `picked` chosen by the reader; returns how many were sampled. */
    add(tokens, picked) {
      const isPicked = tokens.length > 0 && this.passage.tokens.length === picked;
      if (isPicked) Object.assign(tokens[0], { isGiven: false, isPicked: true });
      this.passage.add(tokens);
      const passages = this.writer.panes.map(({ passage }) => passage);
      if (passages.length === 2) markParting(passages);
      if (isPicked) this.passage.focus(picked);
      return tokens.filter((token) => !token.isGiven && !token.isPicked).length;
    }
  };
  function describeRun(count, seed, seconds, computer) {
    const pace = seconds > 0 ? `, ${Math.round(count / seconds)} per second${computer}` : "";
    return `${count} character${count === 1 ? "" : "s"} written with seed ${seed}${pace}.`;
  }
  function untilAborted(signal) {
    return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  }
  function fieldOf(filter) {
    return filter.replaceAll("_", "-");
  }
  function createNumber({ field, type, minimum, exclusiveMinimum, maximum }) {
    const input = Object.assign(create("input"), { type: "number", id: field, required: true });
    input.step = type === "integer" ? "1" : "any";
    input.min = minimum ?? (exclusiveMinimum === void 0 ? "" : exclusiveMinimum + 1e-6);
    input.max = maximum ?? "";
    return input;
  }
  function createControl({ field, description = "" }, input) {
    return Object.assign(create("label", "", `${field[0].toUpperCase()}${field.slice(1)} `, input), {
      title: description
    });
  }

  // gpt/web/src/pages/model.js
  var MAX_TOKENS = 2e4;
  var FILTERS = {
    top_k: {
      type: "integer",
      default: 0,
      minimum: 0,
      description: "Sample from the k most likely characters only; 0: from all."
    },
    top_p: {
      type: "number",
      default: 1,
      exclusiveMinimum: 0,
      maximum: 1,
      description: "Sample from the most likely characters only that together have this probability; 1: from all."
    }
  };
  function openPage() {
    const data = JSON.parse(document.getElementById("data").textContent);
    const main = document.querySelector("main");
    const model = new Model(data, decodeBase64(document.getElementById("weights").textContent));
    const problem = findProblem(model, data.probe);
    if (problem) {
      main.append(create("output", "status wrong", problem));
      return;
    }
    const { temperature, "top-k": topK, "top-p": topP, prompt } = data.start;
    const source = new LocalSource(model, new Tokenizer(data.tokenizer), data.labels, { temperature, topK, topP });
    const context = { source, models: [""], model: "", text: prompt };
    const write = (root2) => {
      const written = (text) => {
        context.text = text;
      };
      const start = { ...data.start, most: MAX_TOKENS, filters: FILTERS };
      new Writer(root2, start, source, [{ name: () => context.model }], { written });
    };
    const readings = ["attention", "lens", "surprisal"].map((name) => readingView(name, () => model.config.block_size));
    const nav = Object.assign(create("nav"), { id: "views", ariaLabel: "Views" });
    const root = Object.assign(create("div"), { id: "view" });
    main.append(create("div", "shell", nav), root);
    startShell(nav, root, [{ ...WRITE, show: write }, ...readings], context);
  }
  if (globalThis.document) openPage();
  return __toCommonJS(model_exports);
})();

import { softmax } from "./model.js";

/** Mersenne Twister (Matsumoto and Nishimura 1998), the generator of `torch.Generator` on a CPU. */
export class Twister {
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

/**
 * Probabilities (V) after temperature, top-k, top-p and min-p, in that order, as gpt/generation/sampling.py has them;
 * temperature 0 is the most likely token. From id `ids` on they are 0.
 */
export function probabilitiesOf(logits, { temperature = 1, topK = 0, topP = 1, minP = 0, ids = logits.length } = {}) {
  const probabilities = Float32Array.from(logits).fill(-Infinity, ids);
  const largest = probabilities.reduce((most, logit) => Math.max(most, logit), -Infinity);
  if (temperature === 0) return probabilities.fill(0).fill(1, logits.indexOf(largest), logits.indexOf(largest) + 1);
  for (let id = 0; id < probabilities.length; id++) probabilities[id] = (probabilities[id] - largest) / temperature;
  if (topK > 0 && topK < probabilities.length) keepTopK(probabilities, topK);
  if (topP < 1) keepTopP(probabilities, topP);
  if (minP > 0) keepMinP(probabilities, minP);
  softmax(probabilities, probabilities.length);
  return probabilities;
}

/** Drops all but the k largest of some logits, and those equal to the smallest of these. */
function keepTopK(logits, k) {
  const smallestKept = Float32Array.from(logits).sort().at(-k);
  for (let id = 0; id < logits.length; id++) {
    if (logits[id] < smallestKept) logits[id] = -Infinity;
  }
}

/** Drops all but the most likely tokens whose probability together reaches p. */
function keepTopP(logits, p) {
  const probabilities = Float32Array.from(logits);
  softmax(probabilities, probabilities.length);
  let sum = 0;
  for (const id of byProbability(probabilities)) {
    const before = Math.fround(Math.fround(sum + probabilities[id]) - probabilities[id]); // in float32, as PyTorch does
    sum += probabilities[id];
    if (before >= p && before > 0) logits[id] = -Infinity;
  }
}

/** Drops tokens that are less likely than p times the most likely one. */
function keepMinP(logits, p) {
  const probabilities = Float32Array.from(logits);
  softmax(probabilities, probabilities.length);
  const least = Math.fround(Math.fround(p) * probabilities.reduce((most, value) => Math.max(most, value), 0));
  for (let id = 0; id < logits.length; id++) {
    if (probabilities[id] < least) logits[id] = -Infinity;
  }
}

/** Ids in order of their probability, the most likely first, and the lower id first among equals. */
export function byProbability(probabilities) {
  return Array.from(probabilities.keys()).sort((a, b) => probabilities[b] - probabilities[a] || a - b);
}

/** The token whose share of the cumulative distribution holds `uniform`. */
export function sampleToken(probabilities, uniform) {
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

/** `-log2` of the probability of a token. */
export function bitsOf(logits, id) {
  const largest = logits.reduce((most, logit) => Math.max(most, logit), -Infinity);
  const sum = logits.reduce((total, logit) => total + Math.exp(logit - largest), 0);
  return (Math.log(sum) + largest - logits[id]) / Math.LN2;
}

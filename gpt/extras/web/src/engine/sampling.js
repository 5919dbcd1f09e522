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
 * Probabilities (V) of the next token after temperature, top-k, top-p and min-p, in that order, as
 * in gpt/generation/sampling.py. At temperature 0 the most likely token has probability 1. Ids from
 * `ids` on, which have no text, have probability 0.
 */
export function probabilitiesOf(
  logits,
  { temperature = 1, topK = 0, topP = 1, minP = 0, ids = logits.length } = {}
) {
  const probabilities = Float32Array.from(logits).fill(-Infinity, ids);
  const largest = probabilities.reduce((most, logit) => Math.max(most, logit), -Infinity);
  if (temperature === 0) {
    probabilities.fill(0);
    probabilities[logits.indexOf(largest)] = 1;
    return probabilities;
  }
  for (let id = 0; id < probabilities.length; id++)
    probabilities[id] = (probabilities[id] - largest) / temperature;
  if (topK > 0 && topK < probabilities.length) keepTopK(probabilities, topK);
  if (topP < 1) keepTopP(probabilities, topP);
  if (minP > 0) keepMinP(probabilities, minP);
  softmax(probabilities, probabilities.length);
  return probabilities;
}

/** Drops all logits but the k largest, and those that are equal to the smallest of these. */
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
    // The sum of the more likely ones, rounded as PyTorch computes it: the cumulative sum without
    // its own probability.
    const before = Math.fround(Math.fround(sum + probabilities[id]) - probabilities[id]);
    sum += probabilities[id];
    const isFirst = before <= 0; // which is kept whatever p is
    if (before >= p && !isFirst) logits[id] = -Infinity;
  }
}

/** Drops tokens that are less likely than p times the most likely one. */
function keepMinP(logits, p) {
  const probabilities = Float32Array.from(logits);
  softmax(probabilities, probabilities.length);
  const largest = probabilities.reduce((most, value) => Math.max(most, value), 0);
  const least = Math.fround(Math.fround(p) * largest); // in float32, as PyTorch computes it
  for (let id = 0; id < logits.length; id++) {
    if (probabilities[id] < least) logits[id] = -Infinity;
  }
}

/**
 * Ids in order of their probability, the most likely first, and the lower id first among equals.
 */
export function byProbability(probabilities) {
  return Array.from(probabilities.keys()).sort(
    (a, b) => probabilities[b] - probabilities[a] || a - b
  );
}

/** The token in whose share of the cumulative distribution `uniform`, from 0 to 1, lies. */
export function sampleToken(probabilities, uniform) {
  const total = probabilities.reduce((sum, probability) => sum + probability, 0);
  let sum = 0;
  let last = 0; // the last possible token, for a sum that rounding keeps below the total
  for (let id = 0; id < probabilities.length; id++) {
    if (probabilities[id] === 0) continue;
    sum += probabilities[id];
    last = id;
    if (sum > uniform * total) break;
  }
  return last;
}

/** The surprise at a token: -log2 of its probability. */
export function bitsOf(logits, id) {
  const largest = logits.reduce((most, logit) => Math.max(most, logit), -Infinity);
  const sum = logits.reduce((total, logit) => total + Math.exp(logit - largest), 0);
  return (Math.log(sum) + largest - logits[id]) / Math.LN2;
}

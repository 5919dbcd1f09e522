import { decodeBase64 } from "../engine/weights.js";

/** Weights from base64: little-endian uint16, in which 65535 is 1. */
function unpack(text) {
  const bytes = decodeBase64(text);
  const weightAt = (index) => (bytes[2 * index] + 256 * bytes[2 * index + 1]) / 65535;
  return Float32Array.from({ length: bytes.length / 2 }, (_, index) => weightAt(index));
}

/**
 * The attention weights of a text: the lower triangle of each head, row after row, as floats or
 * packed.
 */
export class Heads {
  constructor({ labels, layers, heads, weights }) {
    this.size = labels.length;
    this.heads = heads;
    this.count = layers * heads;
    this.weights = typeof weights === "string" ? unpack(weights) : weights;
  }

  /**
   * The weights of a query on the keys up to itself; `head` is the number of a head among those of
   * all layers.
   */
  row(head, query) {
    const triangle = (this.size * (this.size + 1)) / 2; // weights of a head
    const begin = head * triangle + (query * (query + 1)) / 2;
    return this.weights.subarray(begin, begin + query + 1);
  }

  /** The key that a query gives the most weight to. */
  strongestKey(head, query) {
    const row = this.row(head, query);
    return row.indexOf(row.reduce((most, weight) => Math.max(most, weight)));
  }

  nameOf(head) {
    return `layer ${Math.floor(head / this.heads)}, head ${head % this.heads}`;
  }

  /**
   * The distance and the entropy (bits) of a head's attention, averaged over the queries that have
   * more than one key.
   */
  summarize(head) {
    let distance = 0;
    let entropy = 0;
    const first = this.size > 1 ? 1 : 0;
    for (let query = first; query < this.size; query++) {
      this.row(head, query).forEach((weight, key) => {
        distance += weight * (query - key);
        if (weight) entropy -= weight * Math.log2(weight);
      });
    }
    const queries = this.size - first;
    return { distance: distance / queries, entropy: entropy / queries };
  }
}

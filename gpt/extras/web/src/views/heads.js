import { decodeBase64 } from "../engine/weights.js";

/** Little-endian uint16 of base64, as shares of 65535. */
function unpack(text) {
  const bytes = decodeBase64(text);
  return Float32Array.from(
    { length: bytes.length / 2 },
    (_, index) => (bytes[2 * index] + 256 * bytes[2 * index + 1]) / 65535
  );
}

/** Attention weights of a text: the lower triangles, row after row, head after head, as floats or packed. */
export class Heads {
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
    const sums = { distance: 0, entropy: 0 };
    const from = this.size > 1 ? 1 : 0;
    for (let query = from; query < this.size; query++) {
      const row = this.row(head, query);
      row.forEach((weight, key) => {
        sums.distance += weight * (query - key);
        sums.entropy -= weight ? weight * Math.log2(weight) : 0;
      });
    }
    for (const name of Object.keys(sums)) sums[name] /= this.size - from;
    return sums;
  }
}

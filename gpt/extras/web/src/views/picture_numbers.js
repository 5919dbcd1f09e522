import { lengthOf } from "../engine/picture.js";
import { decodeBase64 } from "../engine/weights.js";
import { Heads } from "./heads.js";

/** The numbers of a picture, as gpt/extras/inspection/views/picture.py has them, or the page's own engine, which packs none. */
export class Numbers {
  constructor(view) {
    const { labels, config, parts, weights } = view;
    this.view = view;
    this.config = config;
    this.size = labels.length;
    this.width = config.n_embd;
    this.heads = new Heads({ labels, layers: config.n_layer, heads: config.n_head, weights });
    this.added = unpack(view.added);
    this.queries = unpack(view.queries);
    this.keys = unpack(view.keys);
    this.hidden = unpack(view.hidden);
    this.summed = { token: null, streams: [] }; // streams of the token that was asked for last
    this.addedFirst = parts.indexOf("attn"); // vectors that the blocks begin with
  }

  /** What a part adds to the stream of a token, (C). */
  vector(part, token) {
    const begin = (part * this.size + token) * this.width;
    return this.added.subarray(begin, begin + this.width);
  }

  /** The hidden units of a layer's MLP, (F). */
  hiddenOf(layer, token) {
    const each = this.hidden.length / this.config.n_layer / this.size;
    return this.hidden.subarray((layer * this.size + token) * each, (layer * this.size + token + 1) * each);
  }

  /** A head's query of a token, and its key of another, (D). */
  pairOf(layer, head, token, place) {
    const { n_head: heads, n_kv_head: kvHeads, head_dim: each } = this.config;
    const at = (row, of, index) => ((layer * this.size + row) * of + index) * each;
    const [query, key] = [at(token, heads, head), at(place, kvHeads, Math.floor((head * kvHeads) / heads))];
    return [this.queries.subarray(query, query + each), this.keys.subarray(key, key + each)];
  }

  /** The residual stream of a token after so many parts: their sum. */
  stream(parts, token) {
    if (this.summed.token !== token) this.summed = { token, streams: [new Float32Array(this.width)] };
    const { streams } = this.summed;
    while (streams.length <= parts) {
      const vector = this.vector(streams.length - 1, token);
      streams.push(streams.at(-1).map((value, index) => value + vector[index]));
    }
    return streams[parts];
  }

  lengthOfStream(parts, token) {
    return lengthOf(this.stream(parts, token));
  }

  /** How much a part changes the stream that it is added to: its length as a share of the stream's. */
  change(part, token) {
    return lengthOf(this.vector(part, token)) / this.lengthOfStream(part, token);
  }

  /** Weights of a head on the tokens up to this one. */
  weightsOf(layer, head, token) {
    return this.heads.row(layer * this.config.n_head + head, token);
  }

  /** The two tokens that a head gives most weight to, as pairs of a place and its weight. */
  strongest(layer, head, token) {
    const pairs = Array.from(this.weightsOf(layer, head, token), (weight, key) => [key, weight]);
    return pairs.sort(([, one], [, other]) => other - one).slice(0, 2);
  }

  /** Numbers in the tensors whose names start like this. */
  count(prefix) {
    return this.shapes(prefix).reduce((sum, shape) => sum + shape.reduce((product, size) => product * size, 1), 0);
  }

  shapes(prefix) {
    return this.view.parameters.filter(([name]) => name.startsWith(prefix)).map(([, shape]) => shape);
  }
}

/** Vectors of little-endian int16, each with the value of a step; what is not packed stays as it is. */
function unpack(vectors) {
  if (!vectors?.scales) return vectors;
  const { numbers, scales } = vectors;
  const bytes = decodeBase64(numbers);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const each = bytes.length / 2 / scales.length;
  return Float32Array.from({ length: bytes.length / 2 }, (_, index) => {
    return view.getInt16(2 * index, true) * scales[Math.floor(index / each)];
  });
}

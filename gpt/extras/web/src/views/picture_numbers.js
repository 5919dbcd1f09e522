import { lengthOf } from "../engine/picture.js";
import { decodeBase64 } from "../engine/weights.js";
import { Heads } from "./heads.js";

/**
 * The numbers of a picture, from gpt/extras/inspection/views/picture.py, which packs them, or from
 * the page's own engine.
 */
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
    this.summed = { token: null, streams: [] }; // the streams of the token that was asked for last
    // number of vectors, embedding and position, that the first block reads
    this.addedFirst = parts.indexOf("attn");
  }

  /** What a part adds to the stream of a token, (C). */
  vector(part, token) {
    const begin = (part * this.size + token) * this.width;
    return this.added.subarray(begin, begin + this.width);
  }

  /** The hidden units of a layer's MLP, (F). */
  hiddenOf(layer, token) {
    const length = this.hidden.length / this.config.n_layer / this.size;
    const begin = (layer * this.size + token) * length;
    return this.hidden.subarray(begin, begin + length);
  }

  /** A head's query of one token, and its key of another one, (D) each. */
  pairOf(layer, head, queryToken, keyToken) {
    const { n_head: heads, n_kv_head: kvHeads, head_dim: length } = this.config;
    const kvHead = Math.floor((head * kvHeads) / heads); // several heads may share their keys
    // in (layers, tokens, heads, D)
    const query = ((layer * this.size + queryToken) * heads + head) * length;
    const key = ((layer * this.size + keyToken) * kvHeads + kvHead) * length;
    return [this.queries.subarray(query, query + length), this.keys.subarray(key, key + length)];
  }

  /** The residual stream of a token after so many parts: the sum of what they add. */
  stream(parts, token) {
    if (this.summed.token !== token)
      this.summed = { token, streams: [new Float32Array(this.width)] };
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

  /**
   * How much a part changes the stream that it is added to: its length as a share of the stream's.
   */
  change(part, token) {
    return lengthOf(this.vector(part, token)) / this.lengthOfStream(part, token);
  }

  /** Weights of a head on the tokens up to this one. */
  weightsOf(layer, head, token) {
    return this.heads.row(layer * this.config.n_head + head, token);
  }

  /** The two tokens that a head gives the most weight to, as pairs of an index and a weight. */
  strongest(layer, head, token) {
    const pairs = Array.from(this.weightsOf(layer, head, token), (weight, key) => [key, weight]);
    return pairs.sort(([, one], [, other]) => other - one).slice(0, 2);
  }

  /** How many numbers the tensors have whose names start with a prefix. */
  count(prefix) {
    const sizes = this.shapes(prefix).map((shape) =>
      shape.reduce((product, size) => product * size, 1)
    );
    return sizes.reduce((sum, size) => sum + size, 0);
  }

  /** The shapes of the tensors whose names start with a prefix. */
  shapes(prefix) {
    return this.view.parameters
      .filter(([name]) => name.startsWith(prefix))
      .map(([, shape]) => shape);
  }
}

/**
 * Unpacks vectors of little-endian int16, each vector with a scale; numbers that are not packed
 * stay as they are.
 */
function unpack(vectors) {
  if (!vectors?.scales) return vectors;
  const { numbers, scales } = vectors;
  const bytes = decodeBase64(numbers);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const count = bytes.length / 2;
  const length = count / scales.length; // of a vector
  return Float32Array.from({ length: count }, (_, index) => {
    const scale = scales[Math.floor(index / length)];
    return view.getInt16(2 * index, true) * scale;
  });
}

import { byProbability, probabilitiesOf } from "./sampling.js";

const CANDIDATES = 10; // of the next token, at the end of the model

/** The length of a vector. */
export function lengthOf(values) {
  let squares = 0;
  for (let index = 0; index < values.length; index++) squares += values[index] ** 2;
  return Math.sqrt(squares);
}

/**
 * Gathers what each part of a model adds to the residual stream while the model reads `size`
 * tokens, in the shape of gpt/extras/inspection/views/picture.py. Returns `options(index)`, for
 * `Model.step` at each token, and `view`, which is complete after the last token.
 */
export function gatherPicture({ config, buffers, added: positions }, labels, size) {
  const { n_layer: layers, n_embd: width } = config;
  // (layers, size, length)
  const allocate = (buffer) => new Float32Array(layers * size * buffer.length);
  const inside = {
    q: allocate(buffers.q),
    k: allocate(buffers.k),
    hidden: allocate(buffers.hidden),
  };
  const parts = positions ? ["embedding", "position"] : ["embedding"];
  for (let layer = 0; layer < layers; layer++) parts.push("attn", "mlp");
  const added = new Float32Array(parts.length * size * width); // (parts, size, width)
  const normalized = Array.from({ length: 2 * layers + 1 }, () => []); // lengths, of each norm
  // the most likely token and its probability, of each row
  const lens = Array.from({ length: layers + 1 }, () => []);
  const top = []; // the candidates at the last row

  function options(index) {
    // `Model.step` computes the parts, norms and layers in this order
    let part = 0;
    let norm = 0;
    let layer = -1;
    const onVector = (name, values) => {
      if (name === "ln_1") layer++;
      if (name in inside) {
        inside[name].set(values, (layer * size + index) * values.length);
      } else if (name.startsWith("ln_")) {
        normalized[norm].push(lengthOf(values));
        norm++;
      } else {
        added.set(values, (part * size + index) * width);
        part++;
      }
    };
    const onLens = (row, logits) => {
      const isLast = row === layers;
      // h is what the final norm has just returned
      if (isLast) normalized[norm].push(lengthOf(buffers.h));
      const probabilities = probabilitiesOf(logits);
      const likely = byProbability(probabilities).slice(0, isLast ? CANDIDATES : 1);
      const candidates = likely.map((id) => [labels[id], probabilities[id]]);
      lens[row].push(candidates[0]);
      if (isLast) top.push(candidates);
    };
    return { onVector, onLens };
  }

  const { q: queries, k: keys, hidden } = inside;
  return { options, view: { config, parts, added, queries, keys, hidden, normalized, lens, top } };
}

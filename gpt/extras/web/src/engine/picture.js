import { byProbability, probabilitiesOf } from "./sampling.js";

const CANDIDATES = 10;

/** The length of a vector. */
export function lengthOf(values) {
  let squares = 0;
  for (let index = 0; index < values.length; index++) squares += values[index] ** 2;
  return Math.sqrt(squares);
}

/**
 * Gathers what each part of a model adds to the residual stream, as gpt/extras/inspection/views/picture.py has it, while it
 * reads `size` tokens: `options(index)` are those of `Model.step` for each, `view` has the vectors, lengths and guesses.
 */
export function gatherPicture({ config, buffers, added: positions }, labels, size) {
  const { n_layer: layers, n_embd: width } = config;
  const room = (each) => new Float32Array(layers * size * each.length);
  const inside = { q: room(buffers.q), k: room(buffers.k), hidden: room(buffers.hidden) };
  const ofBlocks = Array.from({ length: layers }, () => ["attn", "mlp"]).flat();
  const parts = ["embedding", ...(positions ? ["position"] : []), ...ofBlocks];
  const added = new Float32Array(parts.length * size * width);
  const normalized = Array.from({ length: 2 * layers + 1 }, () => []);
  const [lens, top] = [Array.from({ length: layers + 1 }, () => []), []];

  function options(index) {
    let [part, norm, layer] = [0, 0, -1];
    const onVector = (name, values) => {
      if (name === "ln_1") layer++;
      if (name in inside) inside[name].set(values, (layer * size + index) * values.length);
      else if (name.startsWith("ln_")) normalized[norm++].push(lengthOf(values));
      else added.set(values, (part++ * size + index) * width);
    };
    const onLens = (row, logits) => {
      const isLast = row === layers;
      if (isLast) normalized[norm].push(lengthOf(buffers.h)); // the final norm gave it, and the logits are made of it
      const probabilities = probabilitiesOf(logits);
      const likely = byProbability(probabilities).slice(0, isLast ? CANDIDATES : 1);
      const named = likely.map((id) => [labels[id], probabilities[id]]);
      lens[row].push(named[0]);
      if (isLast) top.push(named);
    };
    return { onVector, onLens };
  }

  const { q: queries, k: keys, hidden } = inside;
  return { options, view: { config, parts, added, queries, keys, hidden, normalized, lens, top } };
}

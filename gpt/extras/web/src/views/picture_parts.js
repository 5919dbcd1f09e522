import { lengthOf } from "../engine/picture.js";
import { many, percent, quoted } from "../tokens.js";

const NORMS = { layernorm: "LayerNorm", rmsnorm: "RMSNorm" };
const CELLS = 8; // most tokens that are shown with their ids
const ACTIVATIONS = {
  gelu: "GELU",
  gelu_tanh: "GELU",
  relu: "ReLU",
  relu2: "squared ReLU",
  swiglu: "SwiGLU",
};

/** Three significant digits. */
function rounded(value) {
  return Number(value.toPrecision(3)).toLocaleString("en");
}

function withCommas(count) {
  return count.toLocaleString("en");
}

/**
 * The parts of a model in the order in which it computes: those `before` the blocks, `blocks`, and
 * those `after` them. A block has the branches `attention` and `mlp`, the stream in its `middle`
 * and the `stream` that leaves it. A part has
 * - `kind`, `name`, `title` where that is not the name, and `shape`; `note`, its parameters or a
 *   remark;
 * - `value(token)`, a short figure, and `about(token)`, two sentences;
 * - one of these where it is drawn: `vector(token)`; `guess(token)`, the lens's candidate;
 *   `weights(token)` of a head, with `pair(token)`, named vectors that it compares; or
 *   `tokens(token)`, those to show with their ids;
 * - `layer` and `head` of a head, and the `layer` of attention; `card`, the name of the card of the
 *   tour that may be about it.
 */
export function describeParts(numbers, unit) {
  const { config, ids, labels, parts, normalized, lens, top } = numbers.view;
  const {
    n_layer: layers,
    n_head: heads,
    n_kv_head: kvHeads,
    head_dim: headDim,
    vocab_size: vocabulary,
  } = config;
  const { n_embd: width, mlp_hidden: hidden } = config;
  const all = `T ${numbers.size}`;
  const stream = `${all} × C ${width}`;
  const named = (token) => quoted(labels[token]);
  const parameters = (prefix) => many(numbers.count(prefix), "parameter");
  const length = (vector) => rounded(lengthOf(vector));

  const text = {
    kind: "ids",
    name: "text",
    card: "text",
    shape: all,
    note: `of ${many(vocabulary, "id")}`,
    value: (token) => `id ${ids[token]}`,
    tokens: (token) => {
      const first = Math.max(0, token + 1 - CELLS);
      return Array.from({ length: token + 1 - first }, (_, index) => first + index);
    },
    about: (token) => {
      const before = token ? `It comes after ${many(token, unit)}` : "It is the first one";
      return (
        `The model does not see letters: ${named(token)} is number ${ids[token]} of ${withCommas(vocabulary)}. ` +
        `${before}; there is room for ${withCommas(config.block_size)}.`
      );
    },
  };

  /** The embedding of the tokens. */
  function describeEmbedding(part) {
    const vector = (token) => numbers.vector(part, token);
    return {
      kind: "vector",
      name: "embedding",
      card: "embedding",
      shape: stream,
      note: numbers.shapes("wte").length > 0 ? parameters("wte") : "not trained",
      value: (token) => `length ${length(vector(token))}`,
      vector,
      about: (token) =>
        `Row ${ids[token]} of a table of ${withCommas(vocabulary)} × ${width} trained numbers: what ` +
        `${named(token)} is before anything else is read. Its length is ${length(vector(token))}.`,
    };
  }

  /** The vectors of the positions, which are added to the embeddings. */
  function describePosition(part) {
    const vector = (token) => numbers.vector(part, token);
    const isTrained = numbers.shapes("wpe").length > 0;
    const kind = isTrained ? "trained like the others" : "of fixed sines and cosines";
    return {
      kind: "vector",
      name: "position",
      shape: stream,
      note: isTrained ? parameters("wpe") : "not trained",
      value: (token) => `length ${length(vector(token))}`,
      vector,
      about: (token) =>
        `Place ${token} has a vector of its own, ${kind}: added, it tells the model where ${named(token)} stands. ` +
        `Its length is ${length(vector(token))}.`,
    };
  }

  /**
   * The stream after so many parts, at a row of the lens: row 0 is before the first block, row i
   * after i blocks.
   */
  function describeStream(count, row, name) {
    const where = row ? `after block ${row - 1}` : "before the first block";
    const guess = (token) => lens[row][token];
    const rest = (token) => {
      const [label, probability] = guess(token);
      return `If the model ended here, it would expect ${quoted(label)} with ${percent(probability)}.`;
    };
    return { ...describeSum(count, where, rest), name, guess, card: "stream" };
  }

  /** The stream in the middle of a block, after so many parts, where the lens has no row. */
  function describeMiddle(count) {
    const rest = (token) =>
      `Its length is ${rounded(numbers.lengthOfStream(count, token))}; the MLP reads it next.`;
    return { ...describeSum(count, "in the middle of the block", rest), name: "stream" };
  }

  /** What all streams have in common; `rest(token)` is the second sentence about it. */
  function describeSum(count, where, rest) {
    return {
      kind: "stream",
      shape: stream,
      note: "",
      value: (token) => `length ${rounded(numbers.lengthOfStream(count, token))}`,
      vector: (token) => numbers.stream(count, token),
      about: (token) =>
        `The residual stream of ${named(token)} ${where}: ${width} numbers, the sum of all that was added so far. ` +
        rest(token),
    };
  }

  /**
   * A norm: number `norm` of all, of the stream after `count` parts. `reader` reads what it
   * returns.
   */
  function describeNorm(norm, count, module, reader) {
    const name = NORMS[config.norm] ?? config.norm;
    const from = (token) => rounded(numbers.lengthOfStream(count, token));
    const to = (token) => rounded(normalized[norm][token]);
    return {
      kind: "norm",
      name: module === "ln_f" ? "final norm" : "norm",
      shape: stream,
      middle: name,
      note: parameters(module.replace(/^h\.\d+/, "h.0")),
      value: (token) => `${from(token)} → ${to(token)}`,
      about: (token) =>
        `${name} makes a stream of any length one of a known size: here from ${from(token)} to ${to(token)}. ` +
        `${reader} reads that copy; the stream itself stays as it is.`,
    };
  }

  /** Attention as a whole; its heads are parts of their own. */
  function describeAttention(layer) {
    const shared = kvHeads < heads ? `, ${many(kvHeads, "set")} of keys and values` : "";
    const changes = [];
    if (config.qk_norm) changes.push("normalized");
    if (config.position === "rope") changes.push("rotated by their places");
    const prepared = changes.length ? ` Queries and keys are ${changes.join(" and ")} first.` : "";
    const keys = (token) =>
      token
        ? `the keys of the ${many(token + 1, unit)} so far`
        : "its own key, the only one so far";
    return {
      kind: "attention",
      name: "attention",
      layer,
      shape: `H ${heads} × ${all} × S ${numbers.size}`,
      middle: `${many(heads, "head")} of ${headDim} numbers${shared}`,
      note: parameters("h.0.attn"),
      value: (token) => many(token + 1, "key"),
      about: (token) =>
        `Each head compares a query of ${named(token)} with ${keys(token)}, and adds up their values by the weights ` +
        `below.${prepared}`,
    };
  }

  /** One head, with what it looks at most. */
  function describeHead(layer, head) {
    const group = heads / kvHeads; // heads that share keys and values
    const first = head - (head % group);
    const last = first + group - 1;
    const sharing = `Heads ${first} ${group > 2 ? "to" : "and"} ${last} have the same keys and values.`;
    const looks = (token) =>
      numbers.strongest(layer, head, token).map(([key, weight], index) => {
        const share = index === 0 ? `${percent(weight)} of its weight` : percent(weight);
        const place = key < token ? `${token - key} back` : "itself";
        return `${share} on ${named(key)}, ${place}`;
      });
    return {
      kind: "head",
      name: `head ${head}`,
      layer,
      head,
      title: `layer ${layer}, head ${head}`,
      value: (token) =>
        numbers
          .strongest(layer, head, token)
          .map(([key, weight]) => `${labels[key]} ${percent(weight)}`)
          .join("  "),
      weights: (token) => numbers.weightsOf(layer, head, token),
      pair: (token) => {
        const [[keyToken, weight]] = numbers.strongest(layer, head, token);
        const [query, key] = numbers.pairOf(layer, head, token, keyToken);
        const products = query.map((value, index) => value * key[index]);
        const sum = products.reduce((total, value) => total + value, 0);
        const score = rounded(sum / Math.sqrt(headDim));
        return [
          [`query of ${named(token)}`, query],
          [`key of ${named(keyToken)}`, key],
          [
            `products: ${rounded(sum)} in all, / √${headDim} = ${score}; softmax: ${percent(weight)}`,
            products,
          ],
        ];
      },
      about: (token) => {
        const rest =
          group > 1 ? sharing : "The thicker an arc, the more weight is on where it ends.";
        return `Head ${head} of layer ${layer} puts ${looks(token).join(", and ")}. ${rest}`;
      },
    };
  }

  /** What a branch adds to the stream; `what` is the subject of the sentence about it. */
  function describeAddition(part, name, what) {
    const change = (token) => percent(numbers.change(part, token));
    return {
      kind: "addition",
      name,
      shape: stream,
      note: "of the stream's length",
      value: (token) => `adds ${change(token)}`,
      vector: (token) => numbers.vector(part, token),
      about: (token) =>
        `${what} has length ${length(numbers.vector(part, token))}, which is ${change(token)} of the stream's. Added, ` +
        `it changes the stream's length from ${rounded(numbers.lengthOfStream(part, token))} to ` +
        `${rounded(numbers.lengthOfStream(part + 1, token))}.`,
    };
  }

  /** The MLP of a layer; that of a plugin may have no hidden numbers that could be shown. */
  function describeMlp(layer) {
    const isKnown = numbers.shapes("h.0.mlp.c_fc.weight").length > 0;
    const isGated = numbers.shapes("h.0.mlp.c_gate").length > 0;
    const name = ACTIVATIONS[config.mlp] ?? config.mlp;
    const share = numbers.count("h.0.mlp.") / numbers.count("h.0.");
    const through = isGated ? ", lets a gate of as many scale them," : ` through ${name}`;
    const inside = isKnown
      ? `: from ${width} numbers to ${hidden} hidden ones${through} and back`
      : "";
    const strip = numbers.hidden ? "The strip has the hidden ones. " : "";
    const description = {
      kind: "norm",
      name: "MLP",
      card: "mlp",
      shape: isKnown ? `${all} × F ${hidden}` : stream,
      middle: isKnown ? `${width} → ${hidden} → ${width}, ${name}` : name,
      note: parameters("h.0.mlp."),
      value: () => "",
      about: (token) =>
        `It works on ${named(token)} alone, without looking at the others${inside}. ${strip}` +
        `It holds ${percent(share)} of the block's parameters.`,
    };
    return numbers.hidden
      ? { ...description, vector: (token) => numbers.hiddenOf(layer, token) }
      : description;
  }

  function describeBlock(_, layer) {
    const part = numbers.addedFirst + 2 * layer; // that attention adds; the MLP adds the next one
    const module = `h.${layer}`;
    return {
      parameters: parameters("h.0."),
      attention: [
        describeNorm(2 * layer, part, `${module}.ln_1`, "Attention"),
        describeAttention(layer),
        ...Array.from({ length: heads }, (_, head) => describeHead(layer, head)),
        describeAddition(part, "attention adds", "What the heads found"),
      ],
      mlp: [
        describeNorm(2 * layer + 1, part + 1, `${module}.ln_2`, "The MLP"),
        describeMlp(layer),
        describeAddition(part + 1, "MLP adds", "The MLP's output"),
      ],
      middle: describeMiddle(part + 1),
      stream: describeStream(part + 2, layer + 1, `after block ${layer}`),
    };
  }

  const logits = {
    kind: "logits",
    name: "logits",
    card: "bars",
    shape: `${all} × V ${vocabulary}`,
    middle: config.tie_weights
      ? "compared with every row of the embedding"
      : "compared with a row for every id",
    note: config.tie_weights ? "the embedding's" : parameters("lm_head"),
    value: (token) => {
      const [label, probability] = top[token][0];
      return `${label} ${percent(probability)}`;
    },
    about: (token) => {
      const [label, probability] = top[token][0];
      return (
        `Each of the ${many(vocabulary, "id")} gets a score, the product of its row with the stream; softmax makes them ` +
        `probabilities. After ${named(token)} the model expects ${quoted(label)} with ${percent(probability)}.`
      );
    },
  };

  const positions = parts[1] === "position" ? [describePosition(1)] : [];
  const firstStream = describeStream(numbers.addedFirst, 0, "stream");
  const before = [text, describeEmbedding(0), ...positions, firstStream];
  return {
    before,
    blocks: Array.from({ length: layers }, describeBlock),
    after: [describeNorm(2 * layers, parts.length, "ln_f", "The head"), logits],
  };
}

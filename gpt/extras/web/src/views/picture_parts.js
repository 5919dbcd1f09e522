import { lengthOf } from "../engine/picture.js";
import { many, percent, quoted } from "../tokens.js";

const NORMS = { layernorm: "LayerNorm", rmsnorm: "RMSNorm" };
const CELLS = 8; // tokens with their ids
const ACTIVATIONS = { gelu: "GELU", gelu_tanh: "GELU", relu: "ReLU", relu2: "squared ReLU", swiglu: "SwiGLU" };

/** Three significant digits. */
function rounded(value) {
  return Number(value.toPrecision(3)).toLocaleString("en");
}

/**
 * The parts of a model in the order in which it computes: `before` the blocks, `blocks`, each with the branches `attention`
 * and `mlp`, the stream in the `middle` and the `stream` that leaves it, and `after` them. A part has
 * - `kind`, `name`, `title` where that is not the name, and `shape`; and `note`, its parameters or what else does not change;
 * - `value(token)`, a short figure, and `about(token)`, two sentences;
 * - `vector(token)` where there is one to draw, `guess(token)`, the lens's candidate, or `weights(token)` of a head.
 */
export function describeParts(numbers, unit) {
  const { config, ids, labels, parts, normalized, lens, top } = numbers.view;
  const { n_layer: layers, n_head: heads, n_kv_head: kvHeads, head_dim: headDim, vocab_size: vocabulary } = config;
  const { n_embd: width, mlp_hidden: hidden } = config;
  const all = `T ${numbers.size}`;
  const stream = `${all} × C ${width}`;
  const named = (token) => quoted(labels[token]);
  const parameters = (prefix) => many(numbers.count(prefix), "parameter");
  const length = (vector) => rounded(lengthOf(vector));

  const text = {
    kind: "ids",
    name: "text",
    shape: all,
    note: `of ${many(vocabulary, "id")}`,
    value: (token) => `id ${ids[token]}`,
    tokens: (token) => Array.from({ length: Math.min(token + 1, CELLS) }, (_, back) => token - back).reverse(),
    about: (token) =>
      `The model does not see letters: ${named(token)} is number ${ids[token]} of ${vocabulary.toLocaleString("en")}. ` +
      `${token ? `It comes after ${many(token, unit)}` : "It is the first one"}; there is room for ` +
      `${config.block_size.toLocaleString("en")}.`,
  };

  function describeEmbedding(part) {
    const isPosition = parts[part] === "position";
    const isSum = numbers.addedFirst > 1; // else the stream begins as this vector, and is drawn as the next part
    const vector = (token) => numbers.vector(part, token);
    const trained = numbers.shapes(isPosition ? "wpe" : "wte").length > 0;
    const tokens = (token) =>
      `Row ${ids[token]} of a table of ${vocabulary.toLocaleString("en")} × ${width} trained numbers: what ` +
      `${named(token)} is before anything else is read.`;
    const places = (token) =>
      `Place ${token} has a vector of its own, ${trained ? "trained like the others" : "of fixed sines and cosines"}: ` +
      `added, it tells the model where ${named(token)} stands.`;
    return {
      kind: "vector",
      name: isPosition ? "position" : "embedding",
      shape: stream,
      note: trained ? parameters(isPosition ? "wpe" : "wte") : "not trained",
      ...(isSum
        ? { value: (token) => `length ${length(vector(token))}`, vector }
        : {
            value: (token) => `row ${ids[token]}`,
            middle: `a table of ${vocabulary.toLocaleString("en")} × ${width}`,
          }),
      about: (token) => `${(isPosition ? places : tokens)(token)} Its length is ${length(vector(token))}.`,
    };
  }

  /** The stream after so many parts; `row` is that of the lens, null in the middle of a block. */
  function describeStream(count, row, name) {
    const where =
      row === null ? "in the middle of the block" : row ? `after block ${row - 1}` : "before the first block";
    const guess = row === null ? null : (token) => lens[row][token];
    const expected = (token) => `${quoted(guess(token)[0])} with ${percent(guess(token)[1])}`;
    return {
      kind: "stream",
      name,
      shape: stream,
      note: "",
      value: (token) => `length ${rounded(numbers.lengthOfStream(count, token))}`,
      vector: (token) => numbers.stream(count, token),
      guess,
      about: (token) =>
        `The residual stream of ${named(token)} ${where}: ${width} numbers, the sum of all that was added so far. ` +
        (guess
          ? `If the model ended here, it would expect ${expected(token)}.`
          : `Its length is ${rounded(numbers.lengthOfStream(count, token))}; the MLP reads it next.`),
    };
  }

  /** `norm` counts them, `count` the parts that are in its stream. */
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

  function describeAttention() {
    const shared = kvHeads < heads ? `, ${many(kvHeads, "set")} of keys and values` : "";
    const before = [config.qk_norm && "normalized", config.position === "rope" && "rotated by their places"];
    const prepared = before.filter(Boolean).join(" and ");
    return {
      kind: "attention",
      name: "attention",
      shape: `H ${heads} × ${all} × S ${numbers.size}`,
      middle: `${many(heads, "head")} of ${headDim} numbers${shared}`,
      note: parameters("h.0.attn"),
      value: (token) => `${many(token + 1, "key")}`,
      about: (token) =>
        `Each head compares a query of ${named(token)} with ` +
        `${token ? `the keys of the ${many(token + 1, unit)} so far` : "its own key, the only one so far"}, and adds up ` +
        `their values by the weights below.${prepared ? ` Queries and keys are ${prepared} first.` : ""}`,
    };
  }

  function describeHead(layer, head) {
    const group = heads / kvHeads;
    const first = head - (head % group);
    const looks = (token) =>
      numbers.strongest(layer, head, token).map(([key, weight], index) => {
        const share = `${percent(weight)}${index ? "" : " of its weight"}`;
        return `${share} on ${named(key)}, ${key < token ? `${token - key} back` : "itself"}`;
      });
    return {
      kind: "head",
      name: `head ${head}`,
      title: `layer ${layer}, head ${head}`,
      value: (token) =>
        numbers
          .strongest(layer, head, token)
          .map(([key, weight]) => `${labels[key]} ${percent(weight)}`)
          .join("  "),
      weights: (token) => numbers.weightsOf(layer, head, token),
      pair: (token) => {
        const [[place, weight]] = numbers.strongest(layer, head, token);
        const [query, key] = numbers.pairOf(layer, head, token, place);
        const products = query.map((value, index) => value * key[index]);
        const sum = products.reduce((total, value) => total + value, 0);
        return [
          [`query of ${named(token)}`, query],
          [`key of ${named(place)}`, key],
          [
            `products: ${rounded(sum)} in all, / √${headDim} = ${rounded(sum / Math.sqrt(headDim))}; softmax: ${percent(weight)}`,
            products,
          ],
        ];
      },
      about: (token) =>
        `Head ${head} of layer ${layer} puts ${looks(token).join(", and ")}. ` +
        (group > 1
          ? `Heads ${first} ${group > 2 ? "to" : "and"} ${first + group - 1} have the same keys and values.`
          : "The thicker an arc, the more weight is on where it ends."),
    };
  }

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

  function describeMlp(layer) {
    const isKnown = numbers.shapes("h.0.mlp.c_fc.weight").length > 0;
    const name = ACTIVATIONS[config.mlp] ?? config.mlp;
    const way = isKnown ? `${width} → ${hidden} → ${width}, ${name}` : name;
    const gated = numbers.shapes("h.0.mlp.c_gate").length > 0;
    const share = numbers.count("h.0.mlp.") / numbers.count("h.0.");
    const inside = `to ${hidden} hidden ones${gated ? ", lets a gate of as many scale them," : ` through ${name}`} and back`;
    return {
      kind: "norm",
      name: "MLP",
      shape: isKnown ? `${all} × F ${hidden}` : stream,
      middle: way,
      ...(numbers.hidden && { vector: (token) => numbers.hiddenOf(layer, token) }),
      note: parameters("h.0.mlp."),
      value: () => "",
      about: (token) =>
        `It works on ${named(token)} alone, without looking at the others` +
        `${isKnown ? `: from ${width} numbers ${inside}` : ""}. ${numbers.hidden ? "The strip has the hidden ones. " : ""}It holds ${percent(share)} of the block's parameters.`,
    };
  }

  function describeBlock(_, layer) {
    const part = numbers.addedFirst + 2 * layer;
    const module = `h.${layer}`;
    return {
      parameters: parameters("h.0."),
      attention: [
        describeNorm(2 * layer, part, `${module}.ln_1`, "Attention"),
        describeAttention(),
        ...Array.from({ length: heads }, (_, head) => describeHead(layer, head)),
        describeAddition(part, "attention adds", "What the heads found"),
      ],
      mlp: [
        describeNorm(2 * layer + 1, part + 1, `${module}.ln_2`, "The MLP"),
        describeMlp(layer),
        describeAddition(part + 1, "MLP adds", "The MLP's output"),
      ],
      middle: describeStream(part + 1, null, "stream"),
      stream: describeStream(part + 2, layer + 1, `after block ${layer}`),
    };
  }

  const logits = {
    kind: "logits",
    name: "logits",
    shape: `${all} × V ${vocabulary}`,
    middle: config.tie_weights ? "compared with every row of the embedding" : "compared with a row for every id",
    note: config.tie_weights ? "the embedding's" : parameters("lm_head"),
    value: (token) => `${top[token][0][0]} ${percent(top[token][0][1])}`,
    about: (token) =>
      `Each of the ${many(vocabulary, "id")} gets a score, the product of its row with the stream; softmax makes them probabilities. ` +
      `After ${named(token)} the model expects ${quoted(top[token][0][0])} with ${percent(top[token][0][1])}.`,
  };

  const count = parts.length;
  const before = [text, ...parts.slice(0, numbers.addedFirst).map((_, part) => describeEmbedding(part))];
  return {
    before: [...before, describeStream(numbers.addedFirst, 0, "stream")],
    blocks: Array.from({ length: layers }, describeBlock),
    after: [describeNorm(2 * layers, count, "ln_f", "The head"), logits],
  };
}

import { NO_MARKS, withMarks } from "../marks.js";
import { gatherPicture } from "./picture.js";
import { bitsOf, byProbability, probabilitiesOf, Twister } from "./sampling.js";
import { Text } from "./text.js";

const SLICE_MILLISECONDS = 12; // of computation, so that the page draws 60 times a second
const ALTERNATIVES = 10; // of the most likely tokens that are listed

/**
 * Calls `task(index)` for 0 to count - 1, or until it returns true, with pauses in which the page
 * draws, and in which `signal` can end it. `onSlice()` is called before each pause and at the end.
 */
async function inSlices(count, task, signal, onSlice = () => {}) {
  let until = performance.now() + SLICE_MILLISECONDS;
  for (let index = 0; index < count; index++) {
    if (performance.now() > until) {
      onSlice();
      await new Promise((done) => setTimeout(done));
      signal?.throwIfAborted();
      until = performance.now() + SLICE_MILLISECONDS;
    }
    if (task(index)) break;
  }
  onSlice();
}

/**
 * Answers what the views ask by a model in the page. Every method takes one object. The answers
 * have the shape of gpt/extras/inspection/views. A question that comes while another one is
 * answered waits for it.
 */
export class LocalSource {
  /**
   * `labels` has one for each id; `learning` is how the model learned, or null; `marks` are as
   * `NO_MARKS`.
   */
  constructor(model, tokenizer, labels, learning = null, marks = NO_MARKS) {
    this.learning = learning;
    this.begin = marks.begin;
    this.ends = new Set(marks.ends);
    this.model = model;
    this.tokenizer = tokenizer;
    this.labels = labels;
    this.text = new Text(model);
    this.turns = { writing: Promise.resolve(), reading: Promise.resolve() };
  }

  /** Calls `work` when earlier work of this kind, which uses the same cache, has ended. */
  inTurn(kind, work) {
    const result = this.turns[kind].then(work);
    this.turns[kind] = result.catch(() => {});
    return result;
  }

  /** Ids of a text, at least one, after the mark that begins texts, where there is one. */
  encode(text) {
    if (this.begin !== null) return [this.begin, ...this.tokenizer.encodeMarked(text).ids];
    const { ids } = this.tokenizer.encode(text);
    return ids.length ? ids : [this.tokenizer.first];
  }

  /** Ids of a text that a reader has typed to look at, with signs in place of marks. */
  encodeRead(text) {
    return this.encode(this.begin === null ? text : withMarks(text));
  }

  /** A text as the model reads it: unknown characters in a plain form, or left out. */
  readable(text) {
    return this.tokenizer.encodeMarked(text).ids.map(this.tokenizer.stream()).join("");
  }

  ablatedHeads(ablate) {
    return new Set(ablate.map(([layer, head]) => this.model.headNumber(layer, head)));
  }

  /**
   * Continues a prompt, a text or its ids, by `count` tokens, or up to one that ends a text.
   * `onTokens` is called with several tokens at a time: those of the prompt without the first
   * `known`, then the new ones. Returns the characters of the prompt that the model does not know.
   * Throws an AbortError when `signal` is aborted.
   */
  write({ prompt, count, seed, known = 0, ablate = [], signal, ...settings }, onTokens) {
    return this.inTurn("writing", async () => {
      const ids = typeof prompt === "string" ? this.encode(prompt) : prompt;
      settings.ids = this.tokenizer.size;
      this.text.keepBeginningOf(ids, this.ablatedHeads(ablate));
      const show = this.tokenizer.stream();
      const generator = new Twister(seed);
      const tokens = [];
      const write = (index) => {
        if (index >= this.text.ids.length) {
          if (index < ids.length) this.text.append(ids[index]);
          else this.text.sample(settings, generator.uniform());
        }
        const text = show(this.text.ids[index]);
        const isGiven = index < ids.length;
        if (index >= known) tokens.push({ ...this.tokenAt(index, settings), text, isGiven });
        return !isGiven && this.ends.has(this.text.ids[index]);
      };
      await inSlices(ids.length + count, write, signal, () => onTokens(tokens.splice(0)));
      return typeof prompt === "string" ? this.tokenizer.encodeMarked(prompt).unknown : [];
    });
  }

  /** Whether it is known how the model learned. */
  get hasLearning() {
    return this.learning !== null;
  }

  /** The texts of the run's snapshots, in the order of their steps. */
  async texts() {
    const snapshots = Object.values(this.learning?.snapshots ?? {});
    return snapshots.filter(({ sample }) => sample).sort((one, other) => one.step - other.step);
  }

  async runs() {
    return { runs: [this.learning.run.name], training: null };
  }

  async run() {
    return this.learning.run;
  }

  async snapshot({ step }) {
    return this.learning.snapshots[step];
  }

  /**
   * Logits (V) from which the token after the ids was sampled; null where the text no longer begins
   * with these. Those of an earlier item of a list are computed again.
   */
  async logitsAfter({ ids, signal }) {
    const isOther = ids.some((id, index) => id !== this.text.ids[index]);
    if (isOther && this.begin === null) return null;
    const logits = isOther ? await this.reread(ids, signal) : this.text.logits[ids.length];
    // ids without a text are never sampled
    return logits ? logits.slice().fill(-Infinity, this.tokenizer.size) : null;
  }

  /** Logits (V) after some ids; null where they are more than a window. */
  reread(ids, signal) {
    return this.inTurn("reading", async () => {
      if (ids.length > this.model.config.block_size) return null;
      const cache = this.model.caches[1];
      let logits = null;
      const step = (index) => {
        logits = this.model.step(ids[index], index, {
          cache,
          wantLogits: index === ids.length - 1,
        });
      };
      await inSlices(ids.length, step, signal);
      return logits;
    });
  }

  /**
   * A token of the text, and the tokens that could stand in its place, before and after the
   * sampling settings.
   */
  tokenAt(index, settings) {
    const id = this.text.ids[index];
    const logits = this.text.logits[index];
    const label = this.labels[id];
    if (!logits) return { id, label, probability: null, chance: null, own: [], sampled: [] };
    const own = probabilitiesOf(logits);
    const sampled = probabilitiesOf(logits, settings);
    const lists = { own: this.mostLikely(own), sampled: this.mostLikely(sampled) };
    return { id, label, probability: own[id], chance: sampled[id], ...lists };
  }

  /** The most likely tokens that are possible, as triples of id, label and probability. */
  mostLikely(probabilities) {
    const ids = byProbability(probabilities)
      .slice(0, ALTERNATIVES)
      .filter((id) => probabilities[id] > 0);
    return ids.map((id) => [id, this.labels[id], probabilities[id]]);
  }

  /** What the model writes after the end of a text when it always takes the most likely token. */
  continuation({ text, last = Infinity, count, ablate = [], signal }) {
    return this.inTurn("reading", async () => {
      const { block_size: size } = this.model.config;
      if (count >= size) {
        throw new RangeError(
          `A window of ${size} tokens has no room for ${count} new ones after a text.`
        );
      }
      const ids = this.encodeRead(text).slice(-Math.min(last, size - count));
      const fixed = { cache: this.model.caches[1], ablated: this.ablatedHeads(ablate) };
      const given = ids.length;
      const probabilities = [];
      const step = (index) => {
        const logits = this.model.step(ids[index], index, {
          ...fixed,
          wantLogits: index >= given - 1,
        });
        if (!logits) return;
        const largest = logits.reduce((most, logit) => Math.max(most, logit), -Infinity);
        const id = logits.indexOf(largest);
        ids.push(id); // the next call reads it
        probabilities.push(probabilitiesOf(logits)[id]);
      };
      await inSlices(given + count - 1, step, signal);
      const written = ids.slice(given);
      return { ids: written, labels: this.labelsOf(written), probabilities };
    });
  }

  /**
   * Runs the model over the last tokens of a text, at most `last`, of which there must be at least
   * `least`. The answer has the labels of the tokens, `read`, their number, where the text has
   * others, and what `view()` returns after the last token. `begin(ids)` returns `view`, and if it
   * needs them `options(index)`, further options of `Model.step` at each token, and `take(index,
   * logits)`, which is called with the logits after each.
   */
  read({ text, last = Infinity, ablate = [], signal }, least, begin) {
    return this.inTurn("reading", async () => {
      const all = this.encodeRead(text);
      const { block_size: most } = this.model.config;
      const ids = all.slice(-last);
      if (ids.length < least) {
        throw new RangeError(`The text is too short; this view takes at least ${least} tokens.`);
      }
      if (ids.length > most)
        throw new RangeError(`The text has ${ids.length} tokens; the model reads ${most}.`);
      const { options = () => ({}), take = null, view } = begin(ids);
      const fixed = {
        cache: this.model.caches[1],
        ablated: this.ablatedHeads(ablate),
        wantLogits: take !== null,
      };
      const step = (index) => {
        const logits = this.model.step(ids[index], index, { ...fixed, ...options(index) });
        take?.(index, logits);
      };
      await inSlices(ids.length, step, signal);
      const labels = this.labelsOf(ids);
      return ids.length < all.length
        ? { labels, read: ids.length, ...view() }
        : { labels, ...view() };
    });
  }

  /**
   * The attention weights of every head: its lower triangle, row after row, one head after another.
   */
  attention(request) {
    const { n_layer: layers, n_head: heads } = this.model.config;
    return this.read(request, 1, (ids) => {
      const { weights, onWeights } = this.gatherWeights(ids.length);
      return {
        options: (query) => ({ onWeights: onWeights(query) }),
        view: () => ({ layers, heads, weights }),
      };
    });
  }

  /**
   * An array for the weights of all heads on `size` tokens, and for each query a function that
   * stores its rows in it.
   */
  gatherWeights(size) {
    const { n_layer: layers, n_head: heads } = this.model.config;
    const triangle = (size * (size + 1)) / 2;
    const weights = new Float32Array(layers * heads * triangle);
    const onWeights = (query) => (layer, head, row) => {
      const start = (layer * heads + head) * triangle;
      weights.set(row, start + (query * (query + 1)) / 2);
    };
    return { weights, onWeights };
  }

  /** What the model would predict if it ended after each block. */
  lens(request) {
    const { n_layer: layers } = this.model.config;
    const rows = ["embeddings", ...Array.from({ length: layers }, (_, layer) => `block ${layer}`)];
    return this.read(request, 1, (ids) => {
      const top = rows.map(() => []); // the most likely tokens, [row][position]
      const nextProbability = rows.map(() => []); // of the token that comes next, [row][position]
      const options = (index) => ({
        onLens: (row, logits) => {
          const probabilities = probabilitiesOf(logits);
          const likely = byProbability(probabilities).slice(0, ALTERNATIVES);
          top[row].push(likely.map((id) => [this.labels[id], probabilities[id]]));
          // nothing comes after the last token
          nextProbability[row].push(probabilities[ids[index + 1]] ?? null);
        },
      });
      const next = [...this.labelsOf(ids.slice(1)), null];
      return { options, view: () => ({ rows, top, next, next_probability: nextProbability }) };
    });
  }

  /**
   * What each part of the model adds to the residual stream, with the attention weights of all
   * heads.
   */
  picture(request) {
    return this.read(request, 1, (ids) => {
      const { weights, onWeights } = this.gatherWeights(ids.length);
      const { options, view } = gatherPicture(this.model, this.labels, ids.length);
      return {
        options: (query) => ({ ...options(query), onWeights: onWeights(query) }),
        view: () => ({ ...view, ids, weights, parameters: this.model.parameters }),
      };
    });
  }

  /** How surprised the model is by each token. */
  surprisal(request) {
    return this.read(request, 2, (ids) => {
      const bits = [null];
      const take = (index, logits) => {
        if (index < ids.length - 1) bits.push(bitsOf(logits, ids[index + 1]));
      };
      const mean = () => bits.reduce((sum, value) => sum + value, 0) / (bits.length - 1);
      return { take, view: () => ({ bits, mean_bits: mean() }) };
    });
  }

  labelsOf(ids) {
    return ids.map((id) => this.labels[id]);
  }
}

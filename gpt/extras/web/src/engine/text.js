import { NO_HEADS } from "./model.js";
import { probabilitiesOf, sampleToken } from "./sampling.js";

/** A text that grows token by token, with the model's logits before each. */
export class Text {
  constructor(model) {
    this.model = model;
    this.ids = [];
    this.logits = []; // before each token; null for the first, before which there is nothing
    this.ablated = NO_HEADS; // heads whose outputs are zeros
    this.start = 0; // of the window
    this.cached = 0; // tokens of the window that are in the cache
  }

  /** Where the window begins in a text of `length` tokens: it moves by a quarter of itself when it is full. */
  windowStart(length) {
    const { block_size: size } = this.model.config;
    const chunk = Math.max(1, Math.floor(size / 4));
    return length <= size ? 0 : Math.ceil((length - size) / chunk) * chunk;
  }

  /** Logits (V) of the token that comes next. */
  nextLogits() {
    const { ids, model, ablated } = this;
    const start = this.windowStart(ids.length);
    if (start !== this.start) [this.start, this.cached] = [start, 0];
    let logits = null;
    while (start + this.cached < ids.length) {
      const wantLogits = start + this.cached === ids.length - 1;
      logits = model.step(ids[start + this.cached], this.cached, { wantLogits, ablated });
      this.cached++;
    }
    return logits;
  }

  /** Appends a token, and keeps the logits from which it was chosen or read. */
  append(id, logits = this.ids.length ? this.nextLogits() : null) {
    this.logits.push(logits && Float32Array.from(logits));
    this.ids.push(id);
  }

  /** Samples a token and appends it. */
  sample(settings, uniform) {
    const logits = this.nextLogits();
    const id = sampleToken(probabilitiesOf(logits, settings), uniform);
    this.append(id, logits);
    return id;
  }

  /** Forgets the tokens from `length` on. The last token kept is computed again, for the logits after it. */
  truncate(length) {
    this.ids.length = this.logits.length = length;
    this.cached = Math.max(0, Math.min(this.cached, length - 1 - this.start));
  }

  /** Keeps as much of the text as `ids` begins with, computed without the same heads. */
  keepBeginningOf(ids, ablated) {
    const isSame = ablated.size === this.ablated.size && [...ablated].every((head) => this.ablated.has(head));
    const different = this.ids.findIndex((id, index) => id !== ids[index]);
    this.truncate(isSame ? (different < 0 ? this.ids.length : different) : 0);
    this.ablated = ablated;
  }
}

import { NO_HEADS } from "./model.js";
import { probabilitiesOf, sampleToken } from "./sampling.js";

/** A text that grows token by token, with the model's logits before each. */
export class Text {
  constructor(model) {
    this.model = model;
    this.ids = [];
    // before each token; null for the first, before which there is nothing, and for tokens of a
    // long prompt that the window has left behind
    this.logits = [];
    this.ablated = NO_HEADS; // heads whose outputs are zeros
    this.start = 0; // of the window
    this.firstSeen = 0; // the first token that any window has
    this.cached = 0; // tokens of the window that are in the cache
  }

  /**
   * Where the window begins in a text of `length` tokens. When it is full, it moves on by a quarter
   * of its size.
   */
  windowStart(length) {
    const { block_size: size } = this.model.config;
    const chunk = Math.max(1, Math.floor(size / 4));
    return length <= size ? 0 : Math.ceil((length - size) / chunk) * chunk;
  }

  /**
   * Logits (V) of the token that comes next. Tokens that are not in the cache yet are read, all
   * after a move of the window.
   */
  nextLogits() {
    const { ids, model, ablated } = this;
    const start = Math.max(this.firstSeen, this.windowStart(ids.length));
    if (start !== this.start) {
      this.start = start;
      this.cached = 0;
    }
    let logits = null;
    while (start + this.cached < ids.length) {
      const wantLogits = start + this.cached === ids.length - 1;
      logits = model.step(ids[start + this.cached], this.cached, { wantLogits, ablated });
      this.cached++;
    }
    return logits;
  }

  /** Appends a given token, and keeps the logits of its place. */
  append(id) {
    const isSeen = this.ids.length > this.firstSeen;
    const logits = isSeen ? this.nextLogits() : null;
    this.push(id, logits);
  }

  /** Samples a token and appends it. */
  sample(settings, uniform) {
    const logits = this.nextLogits();
    const id = sampleToken(probabilitiesOf(logits, settings), uniform);
    this.push(id, logits);
    return id;
  }

  push(id, logits) {
    // a copy, since the model overwrites them
    this.logits.push(logits && Float32Array.from(logits));
    this.ids.push(id);
  }

  /** Forgets the tokens from `length` on. */
  truncate(length) {
    this.ids.length = length;
    this.logits.length = length;
    // the last token that is kept is read again, for the logits after it
    this.cached = Math.max(0, Math.min(this.cached, length - 1 - this.start));
  }

  /**
   * Keeps the beginning that the text has in common with the prompt `ids`, if it was computed with
   * the same heads ablated. Of a long prompt only the tokens are read that the model sees when it
   * writes: to move the window over all others would take many times as long.
   */
  keepBeginningOf(ids, ablated) {
    const hasSameHeads =
      ablated.size === this.ablated.size && [...ablated].every((head) => this.ablated.has(head));
    const firstDifference = this.ids.findIndex((id, index) => id !== ids[index]);
    if (!hasSameHeads) this.truncate(0);
    else if (firstDifference >= 0) this.truncate(firstDifference);
    // the last token has to be read again, for the logits after it
    else this.truncate(this.ids.length);
    this.ablated = ablated;
    this.firstSeen = this.windowStart(ids.length);
  }
}

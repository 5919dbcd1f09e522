import { splitAtMarks } from "../marks.js";

/** Characters that common texts have and many vocabularies have not, in a plain form. */
const PLAIN = { "‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "\t": " " };

/**
 * `known`: the characters of a text as a vocabulary has them, unknown ones in a plain form, or left
 * out where that is unknown too. `unknown`: the distinct unknown characters.
 */
export function inPlainForm(text, vocabulary) {
  const known = [];
  const unknown = new Set();
  for (const char of text) {
    if (vocabulary.has(char)) {
      known.push(char);
      continue;
    }
    unknown.add(char);
    const plain = PLAIN[char] ?? char.normalize("NFKD"); // of é, an e and an accent
    known.push(...[...plain].filter((part) => vocabulary.has(part)));
  }
  return { known, unknown: [...unknown] };
}

/** Text to ids and back; see gpt/data/tokenizers.py. */
export class Tokenizer {
  constructor(data) {
    const { type, chars } = data;
    this.chars = type === "char" ? chars : null;
    this.ids = new Map((chars ?? []).map((char, id) => [char, id]));
    this.vocabulary = null; // of characters and bytes: their tokens need no search
    if (type === "bpe") this.vocabulary = new BytePairs(data);
    if (type === "word") this.vocabulary = new Words(data);
  }

  /** Ids of a text, and its distinct characters that have none; see `inPlainForm`. */
  encode(text) {
    if (this.vocabulary) return { ids: this.vocabulary.encode(text), unknown: [] };
    if (!this.chars) return { ids: [...new TextEncoder().encode(text)], unknown: [] };
    const { known, unknown } = inPlainForm(text, this.ids);
    return { ids: known.map((char) => this.ids.get(char)), unknown };
  }

  /** The same for a text with marks, of which byte pairs would merge some with what is beside. */
  encodeMarked(text) {
    const parts = splitAtMarks(text).map((part) => this.encode(part));
    return {
      ids: parts.flatMap(({ ids }) => ids),
      unknown: [...new Set(parts.flatMap(({ unknown }) => unknown))],
    };
  }

  /** A function that takes one id after another, and returns the text that is complete with it. */
  stream() {
    if (this.chars) return (id) => this.chars[id] ?? "\ufffd";
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    const bytesOf = (id) => (this.vocabulary ? this.vocabulary.bytesOf(id) : Uint8Array.of(id));
    return (id) => decoder.decode(bytesOf(id), { stream: true });
  }

  /** The number of ids that have a text; the model's vocabulary may be larger. */
  get size() {
    if (this.chars) return this.chars.length;
    return this.vocabulary ? this.vocabulary.tokens.length : 256; // bytes
  }

  /** The id that an empty prompt begins with: a line end, or 0 where the vocabulary has none. */
  get first() {
    return this.encode("\n").ids[0] ?? 0;
  }
}

/** GPT-2's pattern of words. */
const GPT2_WORDS = String.raw`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`;
// JavaScript's \s is not quite Unicode's white space: it has U+FEFF, and lacks U+0085
const WORDS = new RegExp(
  GPT2_WORDS.replaceAll(String.raw`\s`, String.raw`\p{White_Space}`).replaceAll(
    String.raw`\S`,
    String.raw`\P{White_Space}`
  ),
  "gu"
);

/** Byte pair encoding on bytes; see gpt/data/bpe.py. */
class BytePairs {
  /**
   * `symbols` has the character that each of the 256 bytes is written as, `tokens` the token of
   * each id, `merges` the pairs, the most frequent first, and `added` the tokens that are literal
   * text.
   */
  constructor({ symbols, tokens, merges, added }) {
    this.symbols = symbols;
    this.tokens = tokens;
    this.added = new Set(added);
    this.ids = new Map(tokens.map((token, id) => [token, id]));
    this.ranks = new Map(merges.map((pair, rank) => [pair, rank]));
    this.bytes = new Map(symbols.map((symbol, byte) => [symbol, byte]));
    const longestFirst = [...added].sort((one, other) => other.length - one.length);
    const escaped = longestFirst.map((token) => token.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"));
    // `split` keeps what the group matches
    this.literal = escaped.length ? new RegExp(`(${escaped.join("|")})`, "u") : null;
  }

  encode(text) {
    const parts = this.literal ? text.split(this.literal) : [text];
    return parts.flatMap((part) => {
      if (this.added.has(part)) return [this.ids.get(part)];
      return (part.match(WORDS) ?? []).flatMap((word) => this.mergedIds(word));
    });
  }

  /**
   * The ids of a word: of its neighboring parts, those that are the most frequent pair are merged,
   * again and again.
   */
  mergedIds(word) {
    const parts = Array.from(new TextEncoder().encode(word), (byte) => this.symbols[byte]);
    while (parts.length > 1) {
      let lowestRank = Infinity;
      let place = -1;
      for (let index = 0; index + 1 < parts.length; index++) {
        const rank = this.ranks.get(`${parts[index]} ${parts[index + 1]}`) ?? Infinity;
        if (rank < lowestRank) {
          lowestRank = rank;
          place = index;
        }
      }
      if (place < 0) break;
      parts.splice(place, 2, parts[place] + parts[place + 1]);
    }
    return parts.map((part) => this.ids.get(part));
  }

  bytesOf(id) {
    const token = this.tokens[id];
    if (token === undefined) return new TextEncoder().encode("\ufffd");
    if (this.added.has(token)) return new TextEncoder().encode(token);
    return Uint8Array.from(token, (symbol) => this.bytes.get(symbol));
  }
}

/** White space characters, and the words between them; see gpt/data/words.py. */
class Words {
  /** `tokens` has the text of each id, and `unknown` is the id of all other words. */
  constructor({ tokens, unknown }) {
    this.tokens = tokens;
    this.unknown = unknown;
    this.ids = new Map(tokens.map((token, id) => [token, id]));
  }

  encode(text) {
    const parts = text.match(/\p{White_Space}|\P{White_Space}+/gu) ?? [];
    return parts.map((part) => this.ids.get(part) ?? this.unknown);
  }

  bytesOf(id) {
    return new TextEncoder().encode(this.tokens[id] ?? "\ufffd");
  }
}

const PLAIN = { "‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "\t": " " };

/** The characters of a text that are in a vocabulary, others in a plain form or left out; and those others, each once. */
export function inPlainForm(text, vocabulary) {
  const unknown = new Set([...text].filter((char) => !vocabulary.has(char)));
  const known = [...text].flatMap((char) =>
    unknown.has(char) ? [...(PLAIN[char] ?? char.normalize("NFKD"))].filter((part) => vocabulary.has(part)) : [char]
  );
  return { known, unknown: [...unknown] };
}

/** Text to ids and back; see gpt/data/tokenizers.py. */
export class Tokenizer {
  constructor(data) {
    const { type, chars } = data;
    this.chars = type === "char" ? chars : null;
    this.ids = new Map((chars ?? []).map((char, id) => [char, id]));
    this.pairs = type === "bpe" ? new BytePairs(data) : null;
  }

  /** Ids of a text, and the distinct characters that have none: a plain form takes their place, or they are left out. */
  encode(text) {
    if (this.pairs) return { ids: this.pairs.encode(text), unknown: [] };
    if (!this.chars) return { ids: [...new TextEncoder().encode(text)], unknown: [] };
    const { known, unknown } = inPlainForm(text, this.ids);
    return { ids: known.map((char) => this.ids.get(char)), unknown };
  }

  /** A function from one id after another to the text that is complete with it. */
  stream() {
    if (this.chars) return (id) => this.chars[id] ?? "\ufffd";
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    const bytesOf = (id) => (this.pairs ? this.pairs.bytesOf(id) : Uint8Array.of(id));
    return (id) => decoder.decode(bytesOf(id), { stream: true });
  }

  /** Ids that have a text; the model's vocabulary may be larger. */
  get size() {
    return (this.chars ?? this.pairs?.tokens)?.length ?? 256;
  }

  /** Where an empty prompt starts: after a line end, or, where there is none, after id 0. */
  get first() {
    return this.encode("\n").ids[0] ?? 0;
  }
}

/** Words as GPT-2 splits them. \s of JavaScript is not quite Unicode's white space. */
const WORDS = new RegExp(
  String.raw`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    .replaceAll(String.raw`\s`, String.raw`\p{White_Space}`)
    .replaceAll(String.raw`\S`, String.raw`\P{White_Space}`),
  "gu"
);

/** Byte pair encoding on bytes; see gpt/data/bpe.py. */
class BytePairs {
  /**
   * `symbols` are the characters that the 256 bytes are written as, `tokens` one for each id, `merges` pairs, first come
   * the most frequent, and `added` the tokens that are literal text.
   */
  constructor({ symbols, tokens, merges, added }) {
    this.symbols = symbols;
    this.tokens = tokens;
    this.added = new Set(added);
    this.ids = new Map(tokens.map((token, id) => [token, id]));
    this.ranks = new Map(merges.map((pair, rank) => [pair, rank]));
    this.bytes = new Map(symbols.map((symbol, byte) => [symbol, byte]));
    const literal = [...added].sort((one, other) => other.length - one.length);
    const escaped = literal.map((token) => token.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"));
    this.literal = escaped.length ? new RegExp(`(${escaped.join("|")})`, "u") : null;
  }

  encode(text) {
    const parts = this.literal ? text.split(this.literal) : [text];
    return parts.flatMap((part) => {
      if (this.added.has(part)) return [this.ids.get(part)];
      return (part.match(WORDS) ?? []).flatMap((word) => this.mergedIds(word));
    });
  }

  mergedIds(word) {
    const parts = Array.from(new TextEncoder().encode(word), (byte) => this.symbols[byte]);
    while (parts.length > 1) {
      let [best, at] = [Infinity, -1];
      for (let index = 0; index + 1 < parts.length; index++) {
        const rank = this.ranks.get(`${parts[index]} ${parts[index + 1]}`) ?? Infinity;
        if (rank < best) [best, at] = [rank, index];
      }
      if (at < 0) break;
      parts.splice(at, 2, parts[at] + parts[at + 1]);
    }
    return parts.map((part) => this.ids.get(part));
  }

  bytesOf(id) {
    const token = this.tokens[id];
    if (token === undefined || this.added.has(token)) return new TextEncoder().encode(token ?? "\ufffd");
    return Uint8Array.from(token, (symbol) => this.bytes.get(symbol));
  }
}

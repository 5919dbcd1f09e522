/** The marks of items and of questions and answers; see gpt/data/pairs.py. */

/** Marks, which are control characters, and the signs by which the pages show and read them. */
export const SIGNS = new Map([
  ["\x1d", "␝"],
  ["\x1e", "␞"],
  ["\x1f", "␟"],
]);
/** What stands for a mark in a text that is copied to where nobody knows the signs. */
const LINE_ENDS = new Map([
  ["\x1d", "\n"],
  ["\x1e", "\n\n"],
  ["\x1f", "\n"],
]);
const MARKS = new Map([...SIGNS].map(([mark, sign]) => [sign, mark]));

/**
 * The marks of a model of running text. `kind` is what a model writes: "text", "items" of a list,
 * or "answers" to questions. `begin` is the id before each text, or null, and `ends` are the ids
 * that end one. `answer` is the mark after a question, and `turn` the one after an answer that
 * another question follows; both are empty where there are none.
 */
export const NO_MARKS = { kind: "text", begin: null, ends: [], answer: "", turn: "" };

/** A text with the mark of each sign in its place. */
export function withMarks(text) {
  return [...text].map((char) => MARKS.get(char) ?? char).join("");
}

/** A text as texts without marks, and between them the marks, each by itself. */
export function splitAtMarks(text) {
  const parts = [""];
  for (const char of text) {
    if (SIGNS.has(char)) parts.push(char, "");
    else parts[parts.length - 1] += char;
  }
  return parts;
}

/** The text of tokens with signs for marks, as the views read it: without the mark `begin`. */
export function textOf(tokens, begin) {
  return textAfter(begin, tokens, SIGNS);
}

/** The text of tokens with line ends for marks, without the mark `begin`. */
export function plainTextOf(tokens, begin) {
  return textAfter(begin, tokens, LINE_ENDS);
}

/**
 * The text of tokens after the mark that begins it, if it is there; `table` has what replaces each
 * mark.
 */
function textAfter(begin, tokens, table) {
  const hasBegin = begin !== null && tokens[0]?.id === begin;
  return tokens
    .slice(hasBegin ? 1 : 0)
    .map(({ text }) => table.get(text) ?? text)
    .join("");
}

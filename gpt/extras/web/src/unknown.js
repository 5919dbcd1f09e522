import { withMarks } from "./marks.js";

const MOST_NAMED = 10; // characters that one message names
const NAMES = { "\t": "tab", "\n": "line end", "\r": "carriage return" };
// control and format characters, white space, accents without a letter, and joiners
const INVISIBLE = /[\p{C}\p{Z}\p{M}\p{Default_Ignorable_Code_Point}]/u;

/** A character as a message names it: one that cannot be seen by its number. */
export function nameOfCharacter(char) {
  if (char in NAMES) return NAMES[char];
  if (!INVISIBLE.test(char)) return char;
  const number = char.codePointAt(0).toString(16).toUpperCase();
  return `U+${number.padStart(4, "0")}`;
}

/** Says which characters a model does not know; nothing where it knows all. */
export function describeUnknown(characters) {
  if (!characters.length) return "";
  const named = characters.slice(0, MOST_NAMED).map(nameOfCharacter).join(" ");
  const rest = characters.length - MOST_NAMED;
  const others = rest > 0 ? ` and ${rest} more` : "";
  return `The model does not know ${named}${others}, so a plain form took their place, or they were left out.`;
}

/**
 * The distinct characters of a text that a model does not know. `facts` are those of the model;
 * one whose tokens are not characters reads any text.
 */
export function unknownIn(text, source, facts) {
  if (facts?.token !== "character") return [];
  const hasMarks = facts.marks.begin !== null; // signs stand for marks only where there are any
  const isUnknown = (char) => {
    const typed = hasMarks ? withMarks(char) : char;
    return source.readable(typed) !== typed;
  };
  return [...new Set(text)].filter(isUnknown);
}

import { create } from "../dom.js";
import { many } from "../tokens.js";

const MINUTE = 60; // seconds
const HOUR = 60 * MINUTE;

/**
 * What a model is, in elements of a paragraph: how it was made, what came of it, and what its text
 * is.
 */
export function describeModel(facts) {
  return [
    create("span", "", describeMaking(facts)),
    create("span", "", describeLoss(facts.about)),
    create("strong", "", ` ${describeText(facts)}`),
  ];
}

/** What a model's text is; nothing of a list or an answer, which the training text may have. */
export function describeText({ marks }) {
  return marks.kind === "text" ? "This text did not exist before." : "";
}

/** What a model is and learned from. What is not known is left out. */
export function describeMaking({ about }) {
  const { corpus, characters, seconds, hardware } = about;
  let made = `${about.parameters.toLocaleString("en")} numbers`;
  if (corpus) {
    const size = characters ? `${roughly(characters)} characters of ` : "";
    made += ` learned from ${size}${corpus}`;
  }
  if (seconds) made += ` in ${duration(seconds)}`;
  if (seconds && hardware) made += ` on ${hardware}`;
  return `${made}.`;
}

/** The validation loss in words; empty where it is not known. */
function describeLoss({ choices, vocab_size: size, token }) {
  if (!choices) return "";
  const bits = Math.log2(choices).toFixed(2);
  const blind = Math.log2(size).toFixed(2);
  return (
    ` Guessing the next ${token} of text that it has never read, it hesitates between about ` +
    `${choices.toFixed(1)}; a model that knows nothing hesitates between all ${size.toLocaleString("en")} ` +
    `(${bits} bits per ${token} instead of ${blind}).`
  );
}

/** A large number to two digits. */
function roughly(count) {
  if (count < 1000) return String(count);
  const format = new Intl.NumberFormat("en", {
    notation: "compact",
    compactDisplay: "long",
    maximumSignificantDigits: 2,
  });
  return format.format(count);
}

/** A time in words. */
function duration(seconds) {
  if (seconds < 2 * MINUTE) return many(Math.max(1, Math.round(seconds)), "second");
  if (seconds < 2 * HOUR) return many(Math.round(seconds / MINUTE), "minute");
  return many(Math.round(seconds / HOUR), "hour");
}

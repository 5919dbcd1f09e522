import { create, createButton } from "./dom.js";

const MOST_SHOWN = 40; // characters of a text on its button

/**
 * Offers texts as buttons in `box`, each of which calls `choose(text)`. Nothing is shown where
 * there are none, as of a model whose corpus is gone.
 */
export function offerExamples(box, texts, choose) {
  const chips = texts.map((text) => {
    const chip = createButton("chip", shorten(text), () => choose(text));
    chip.title = text;
    return chip;
  });
  box.hidden = texts.length === 0;
  box.classList.add("chips", "examples");
  box.replaceChildren(create("span", "hint", "Try"), ...chips);
}

/** A text in one line, cut after a whole word where it is long. */
function shorten(text) {
  const line = text.trim().replace(/\s+/g, " ");
  if (line.length <= MOST_SHOWN) return line;
  const beginning = line.slice(0, MOST_SHOWN);
  const end = beginning.lastIndexOf(" ");
  return `${end > 0 ? beginning.slice(0, end) : beginning}…`;
}

import { create } from "../dom.js";
import { unitOf } from "../tokens.js";

const WORDS = {
  attention: "what the heads look at from it",
  lens: "what each block expects after it",
  surprisal: "how surprising it was",
};

/**
 * Fills a line with links to other views of the same text at one of its tokens: to the `doors` of a view, their names.
 * `others` has, by such a name, the words and the token of a link that leads elsewhere than to `token`.
 */
export function drawDoors(line, view, token, others = {}) {
  const links = (view.doors ?? [])
    .map((name) => [name, ...(others[name] ?? [WORDS[name], token])])
    .filter(([, , place]) => place in view.labels)
    .map(([name, words, place]) => Object.assign(create("a", "", words), { href: `#${name}?token=${place}` }));
  line.hidden = links.length === 0;
  line.replaceChildren(`This ${unitOf(view)}: `, ...links.flatMap((link, index) => (index ? [" · ", link] : [link])));
}

/** A whole number from 0 to `most` that an address has under a name, or else null. */
export function placeIn(params, name, most) {
  const text = params.get(name) ?? "";
  return /^\d+$/.test(text) && Number(text) <= most ? Number(text) : null;
}

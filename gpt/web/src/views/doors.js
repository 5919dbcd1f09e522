import { create } from "../dom.js";
import { unitOf } from "../tokens.js";

const WORDS = { attention: "what the heads look at from it", lens: "what each block expects after it" };

/** Fills a line with links to other views of the same text at one of its tokens: to the `doors` of a view, their names. */
export function drawDoors(line, view, token) {
  const links = (view.doors ?? []).map((name) =>
    Object.assign(create("a", "", WORDS[name]), { href: `#${name}?token=${token}` })
  );
  line.hidden = links.length === 0;
  line.replaceChildren(`This ${unitOf(view)}: `, ...links);
}

/** A whole number from 0 to `most` that an address has under a name, or else null. */
export function placeIn(params, name, most) {
  const text = params.get(name) ?? "";
  return /^\d+$/.test(text) && Number(text) <= most ? Number(text) : null;
}

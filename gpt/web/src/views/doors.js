import { create } from "../dom.js";

const WORDS = {
  attention: "what the heads look at from here",
  lens: "what each block expects next",
  surprisal: "how surprising it was",
};

/** Fills a line with links to other views of the same text at one of its tokens; `doors` are their names. */
export function drawDoors(line, doors, token) {
  const links = doors.map((name) => Object.assign(create("a", "", WORDS[name]), { href: `#${name}?token=${token}` }));
  line.hidden = links.length === 0;
  line.replaceChildren("Of this one: ", ...links.flatMap((link, index) => (index ? [" · ", link] : [link])));
}

/** A whole number from 0 to `most` that an address has under a name, or else null. */
export function placeIn(params, name, most) {
  const text = params.get(name) ?? "";
  return /^\d+$/.test(text) && Number(text) <= most ? Number(text) : null;
}

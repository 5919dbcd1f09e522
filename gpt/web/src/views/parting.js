/** Marks where two passages part, whatever tokens they are made of. */
export function markParting(passages) {
  const [first, second] = passages.map(({ tokens }) => tokens.map(({ text }) => text).join(""));
  const both = Math.min(first.length, second.length);
  let place = 0;
  while (place < both && first[place] === second[place]) place++;
  for (const passage of passages) passage.mark(place < both ? tokenAt(passage.tokens, place) : null);
}

/** The index of the token that has the character at a place of the text. */
function tokenAt(tokens, place) {
  let end = 0;
  return tokens.findIndex(({ text }) => {
    end += text.length;
    return end > place;
  });
}

const LEAST_LEAD = 0.2; // over uniform attention; a head with a smaller one has no name
const LEAST_QUERIES = 4; // of an average that says something
// where a head looks that has nothing to do, or is not trained yet
const DULL = ["first", "itself"];
const INVISIBLE = /^(CR⏎?|U\+[0-9A-F]+|#\d+)$/; // the labels of characters without a glyph
const startsInWord = (label) => /^[\p{L}\p{N}_]/u.test(label) && !INVISIBLE.test(label);
const endsInWord = (label) => /[\p{L}\p{N}_]$/u.test(label) && !INVISIBLE.test(label);

/**
 * The kinds of heads by their names, and what such a head looks at; `unit` is a character or a
 * token.
 */
export function describeKinds(unit) {
  return {
    previous: `the previous ${unit}`,
    duplicate: `the same ${unit} earlier in the text`,
    induction: `what followed the same ${unit} earlier in the text`,
    "line start": `the start of its line: the line break before it and its first ${unit}`,
    "word start": `the start of its word: its first ${unit} and the one before`,
    first: `the first ${unit} of the text`,
    itself: "itself",
  };
}

/**
 * For each kind, the keys that a head of this kind would look at from each query; none where there
 * are none.
 */
function keysByKind(labels) {
  const placesOf = new Map(); // of each label, up to the query
  const duplicate = labels.map((label, query) => {
    const earlier = placesOf.get(label) ?? [];
    placesOf.set(label, [...earlier, query]);
    return earlier;
  });
  const { lines, words } = findStarts(labels);
  // the first query has no choice
  const keyOf = (choose) => (_, query) => (query > 0 ? [choose(query)] : []);
  return {
    previous: labels.map(keyOf((query) => query - 1)),
    duplicate,
    induction: duplicate.map((keys, query) =>
      keys.map((key) => key + 1).filter((key) => key < query)
    ),
    "line start": lines.map(keysAround),
    "word start": words.map(keysAround),
    first: labels.map(keyOf(() => 0)),
    itself: labels.map(keyOf((query) => query)),
  };
}

/**
 * Where the line and the word of each query start; undefined in the first line, whose start may be
 * cut off, and between words.
 */
function findStarts(labels) {
  const lines = [];
  const words = [];
  labels.forEach((label, query) => {
    const before = labels[query - 1] ?? "";
    lines.push(before.includes("⏎") ? query : lines[query - 1]);
    const continuesWord = startsInWord(label) && endsInWord(before);
    if (continuesWord) words.push(words[query - 1]);
    else words.push(endsInWord(label) ? query : undefined);
  });
  return { lines, words };
}

/**
 * The start of the line or word of a query and the token before it, unless the query is near: then
 * it looks at the previous.
 */
function keysAround(start, query) {
  const isFar = query - start >= 2; // false where there is no start
  return isFar ? [start - 1, start].filter((key) => key >= 0) : [];
}

/**
 * What every head of `heads` looks at in a text with these labels: `measures` has for each kind the
 * average `weight` on its keys, over the queries that have any, the share `even` that uniform
 * attention would have there, and the `lead` over that; `kind` is the one with the largest `lead`,
 * null where that is small.
 */
export function measureHeads(heads, labels) {
  const kinds = Object.entries(keysByKind(labels)).map(([name, keys]) => {
    const queries = [...keys.keys()].filter((query) => keys[query].length);
    const even =
      queries.reduce((sum, query) => sum + keys[query].length / (query + 1), 0) / queries.length;
    return { name, keys, queries, even };
  });
  const enough = kinds.filter(({ queries }) => queries.length >= LEAST_QUERIES);
  return Array.from({ length: heads.count }, (_, head) => {
    const measures = enough.map(({ name, keys, queries, even }) => {
      let weight = 0;
      for (const query of queries) {
        const row = heads.row(head, query);
        for (const key of keys[query]) weight += row[key] / queries.length;
      }
      return { name, weight, even, lead: weight - even };
    });
    const best = measures.reduce((one, other) => (other.lead > one.lead ? other : one), {
      name: null,
      lead: 0,
    });
    return { measures, lead: best.lead, kind: best.lead < LEAST_LEAD ? null : best.name };
  });
}

/**
 * The most telling of some heads: the one with the largest lead, among those of a kind that is not
 * dull if there are any.
 */
export function mostTelling(measured, heads) {
  const worth = (head) => {
    const { lead, kind } = measured[head];
    const isTelling = kind !== null && !DULL.includes(kind);
    return isTelling ? 1 + lead : lead; // a lead is below 1
  };
  return heads.reduce((one, other) => (worth(other) > worth(one) ? other : one));
}

const LEAST_LEAD = 0.2; // over uniform attention, below which a head has no name
const LEAST_QUERIES = 4; // that an average is made of
const DULL = ["first", "itself"]; // where a head looks that has nothing to do, or does nothing yet
const INVISIBLE = /^(CR⏎?|U\+[0-9A-F]+|#\d+)$/; // labels of what has no glyph
const startsInWord = (label) => /^[\p{L}\p{N}_]/u.test(label) && !INVISIBLE.test(label);
const endsInWord = (label) => /[\p{L}\p{N}_]$/u.test(label) && !INVISIBLE.test(label);

/** The kinds of heads by their names, and what such a head looks at; `unit` is a character or a token. */
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

/** For each kind, the keys that every query of a text with these labels would look at; none where it has none. */
function keysByKind(labels) {
  const places = new Map();
  const duplicate = labels.map((label, query) => {
    const earlier = places.get(label) ?? [];
    places.set(label, [...earlier, query]);
    return earlier;
  });
  const [lines, words] = [[], []]; // where the line and the word of each query start
  labels.forEach((label, query) => {
    const before = labels[query - 1] ?? "";
    lines.push(before.includes("⏎") ? query : lines[query - 1]);
    const continues = startsInWord(label) && endsInWord(before);
    words.push(continues ? words[query - 1] : endsInWord(label) ? query : undefined);
  });
  const only = (key) => (_, query) => (query ? [key(query)] : []); // the first query has no choice
  // Nearer to its start a query cannot be told from one that looks at the previous token.
  const around = (start, query) => (query - start >= 2 ? [start - 1, start].filter((key) => key >= 0) : []);
  return {
    previous: labels.map(only((query) => query - 1)),
    duplicate,
    induction: duplicate.map((keys, query) => keys.map((key) => key + 1).filter((key) => key < query)),
    "line start": lines.map(around),
    "word start": words.map(around),
    first: labels.map(only(() => 0)),
    itself: labels.map(only((query) => query)),
  };
}

/**
 * What every head of `heads` looks at in a text with these labels: `measures`, for each kind the average `weight` on such
 * keys over the queries that have any, the share `even` that uniform attention would have there, and
 * the `lead` over it; and the `kind` of the largest lead, null where that is small.
 */
export function measureHeads(heads, labels) {
  const kinds = Object.entries(keysByKind(labels)).map(([name, keys]) => {
    const queries = [...keys.keys()].filter((query) => keys[query].length);
    const even = queries.reduce((sum, query) => sum + keys[query].length / (query + 1), 0) / queries.length;
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
    const best = measures.reduce((one, other) => (other.lead > one.lead ? other : one), { name: null, lead: 0 });
    return { measures, lead: best.lead, kind: best.lead < LEAST_LEAD ? null : best.name };
  });
}

/** The most telling of the `heads` given: the largest lead, before all others of a kind that is not dull. */
export function mostTelling(measured, heads) {
  const worth = (head) => measured[head].lead + (measured[head].kind && !DULL.includes(measured[head].kind) ? 1 : 0);
  return heads.reduce((one, other) => (worth(other) > worth(one) ? other : one));
}

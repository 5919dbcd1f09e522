/** Links that let the Write view write a certain text. */

// the name of each value in a link, by the name of its field in the form
const SHORT = { prompt: "p", seed: "seed", temperature: "t", count: "n", model: "m" };
const FIELDS = new Map(Object.entries(SHORT).map(([field, short]) => [short, field]));
const ADDRESS = "#write?";

/** The end of an address: the values of a request, of which empty ones are left out. */
export function linkTo(values) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    const field = name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
    if (value !== "" || name === "prompt") query.set(SHORT[field] ?? field, String(value));
  }
  return ADDRESS + query;
}

/** The values of the link that has led here, by the names of the form's fields; none without. */
export function linkedValues() {
  if (!location.hash.startsWith(ADDRESS)) return {};
  const query = new URLSearchParams(location.hash.slice(ADDRESS.length));
  return Object.fromEntries([...query].map(([name, value]) => [FIELDS.get(name) ?? name, value]));
}

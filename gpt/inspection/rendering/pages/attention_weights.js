/** Little-endian uint16 of the lower triangles, row after row, head after head. */
function readWeights(text) {
  const bytes = atob(text);
  const values = new Float32Array(bytes.length / 2);
  for (let index = 0; index < values.length; index++) {
    values[index] = (bytes.charCodeAt(2 * index) + 256 * bytes.charCodeAt(2 * index + 1)) / 65535;
  }
  return values;
}

/** Where each head looks, averaged over the queries that have more than one key: for each layer, for each head. */
function summarizeHeads({ labels, layers, heads, weights }) {
  const size = labels.length;
  const triangle = (size * (size + 1)) / 2;
  const summarize = (begin) => {
    const sums = { itself: 0, previous: 0, first: 0, distance: 0, entropy: 0 };
    const from = size > 1 ? 1 : 0;
    for (let query = from; query < size; query++) {
      const row = weights.subarray(begin + (query * (query + 1)) / 2, begin + ((query + 1) * (query + 2)) / 2);
      sums.itself += row[query];
      sums.previous += query ? row[query - 1] : 0;
      sums.first += row[0];
      row.forEach((weight, key) => {
        sums.distance += weight * (query - key);
        sums.entropy -= weight ? weight * Math.log2(weight) : 0;
      });
    }
    return Object.fromEntries(Object.entries(sums).map(([name, sum]) => [name, sum / (size - from)]));
  };
  return Array.from({ length: layers }, (_, layer) =>
    Array.from({ length: heads }, (_, head) => summarize((layer * heads + head) * triangle))
  );
}

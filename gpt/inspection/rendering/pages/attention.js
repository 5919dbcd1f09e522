/** Little-endian uint16 of the lower triangles, row after row, head after head. */
function readWeights(text) {
  const bytes = atob(text);
  const values = new Float32Array(bytes.length / 2);
  for (let index = 0; index < values.length; index++) {
    values[index] = (bytes.charCodeAt(2 * index) + 256 * bytes.charCodeAt(2 * index + 1)) / 65535;
  }
  return values;
}

whenThemeChanges(document.body, showAttention({ ...data, weights: readWeights(data.weights) }));

/** Bytes of a base64 text. */
export function decodeBase64(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/**
 * The value of each of the 65,536 half-precision floats (IEEE 754 binary16): a table, since
 * JavaScript has no such type.
 */
export function halfPrecisionTable() {
  return Float32Array.from({ length: 65536 }, (_, bits) => {
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    const isSubnormal = exponent === 0;
    const magnitude = isSubnormal ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25);
    return bits & 0x8000 ? -magnitude : magnitude;
  });
}

/**
 * Fills `target`, (rows, columns), from the bytes of a tensor: float32, fp16, or int8 with a
 * float32 scale for each row. `halves` is a `halfPrecisionTable`.
 */
export function readTensor({ format, shape, offset }, bytes, target, halves) {
  const view = new DataView(bytes.buffer, bytes.byteOffset + offset);
  const columns = shape.at(-1);
  const scalesAt = target.length; // the scales follow the integers
  const scale = (row) => view.getFloat32(scalesAt + 4 * row, true);
  const readers = {
    float32: (index) => view.getFloat32(4 * index, true),
    fp16: (index) => halves[view.getUint16(2 * index, true)],
    int8: (index) => view.getInt8(index) * scale(Math.floor(index / columns)),
  };
  const read = readers[format];
  for (let index = 0; index < target.length; index++) target[index] = read(index);
}

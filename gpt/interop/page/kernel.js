"use strict";

// Opcodes of WebAssembly; the numbers are those of the specification's index of instructions.
const VOID = 0x40;
const op = {
  block: 0x02, loop: 0x03, end: 0x0b, br: 0x0c, brIf: 0x0d, get: 0x20, set: 0x21,
  f32Load: 0x2a, f32Store: 0x38, i32Const: 0x41, i32LessThan: 0x49, i32AtLeast: 0x4f,
  i32Add: 0x6a, i32Sub: 0x6b, i32And: 0x71, i32Shl: 0x74, f32Add: 0x92, f32Mul: 0x94,
  v128Load: [0xfd, 0x00], v128Zero: [0xfd, 0x0c, ...new Array(16).fill(0)], extractLane: [0xfd, 0x1f],
  f32x4Add: [0xfd, 0xe4, 0x01], f32x4Mul: [0xfd, 0xe6, 0x01],
};
const I32 = 0x7f;
const F32 = 0x7d;
const V128 = 0x7b;
const MAX_ROWS = 8;

// Parameters of `matmul`, all in bytes but `rows`, and its local variables.
const OUT = 0, WEIGHT = 1, X = 2, WIDTH = 3, ROWS = 4, STRIDE = 5;
const AT = 6, VECTORS = 7, ROW = 8, SUM = ROW + MAX_ROWS, FOUR_X = SUM + MAX_ROWS, FOUR = FOUR_X + 1;

const get = (local) => [op.get, local];
const set = (local) => [op.set, local];
const constant = (value) => [op.i32Const, value]; // below 64, which is one byte
const each = (count, code) => Array.from({ length: count }, (_, index) => code(index));
const add = (...terms) => terms.map((term, index) => [term, index ? op.i32Add : []]);

/** Repeats `code` while `left` is less than `right`. */
function loopWhileLess(left, right, code) {
  const test = [get(left), get(right), op.i32AtLeast, op.brIf, 1];
  return [op.block, VOID, op.loop, VOID, test, code, op.br, 0, op.end, op.end];
}

/**
 * Code that multiplies the remaining rows by x, `count` at a time, so that each load of x serves `count` sums. The sum
 * of a row is added up in the same order for every `count`.
 */
function tile(count) {
  const loadFour = (address) => [add(get(address), get(AT)), op.v128Load, 2, 0];
  const loadOne = (address) => [add(get(address), get(AT)), op.f32Load, 2, 0];
  const lane = (row, index) => [get(FOUR + row), op.extractLane, index];
  const body = [
    get(WEIGHT), set(ROW),
    each(count - 1, (row) => [add(get(ROW + row), get(STRIDE)), set(ROW + row + 1)]),
    each(count, (row) => [op.v128Zero, set(FOUR + row)]),
    constant(0), set(AT),
    loopWhileLess(AT, VECTORS, [
      loadFour(X), set(FOUR_X),
      each(count, (row) => [
        get(FOUR + row), get(FOUR_X), loadFour(ROW + row), op.f32x4Mul, op.f32x4Add, set(FOUR + row),
      ]),
      add(get(AT), constant(16)), set(AT),
    ]),
    each(count, (row) => [
      lane(row, 0), lane(row, 1), op.f32Add, lane(row, 2), lane(row, 3), op.f32Add, op.f32Add, set(SUM + row),
    ]),
    loopWhileLess(AT, WIDTH, [
      each(count, (row) => [get(SUM + row), loadOne(X), loadOne(ROW + row), op.f32Mul, op.f32Add, set(SUM + row)]),
      add(get(AT), constant(4)), set(AT),
    ]),
    each(count, (row) => [get(OUT), get(SUM + row), op.f32Store, 2, 4 * row]),
    add(get(OUT), constant(4 * count)), set(OUT),
    add(get(ROW + count - 1), get(STRIDE)), set(WEIGHT),
    get(ROWS), constant(count), op.i32Sub, set(ROWS),
  ];
  const tooFew = [get(ROWS), constant(count), op.i32LessThan, op.brIf, 1];
  return [op.block, VOID, op.loop, VOID, tooFew, body, op.br, 0, op.end, op.end];
}

function leb128(value) {
  return value < 128 ? [value] : [(value & 127) | 128, ...leb128(value >>> 7)];
}

/** The bytes of a module that imports a memory and exports `matmul(out, weight, x, width, rows, stride)`. */
function assembleModule() {
  const vector = (...entries) => [entries.length, entries];
  const name = (text) => [text.length, [...text].map((char) => char.charCodeAt(0))];
  const sized = (content) => {
    const bytes = content.flat(Infinity);
    return [leb128(bytes.length), bytes];
  };
  const locals = vector([2 + MAX_ROWS, I32], [MAX_ROWS, F32], [1 + MAX_ROWS, V128]);
  const wholeVectors = [get(WIDTH), constant(0x70), op.i32And, set(VECTORS)];
  const code = [locals, wholeVectors, tile(MAX_ROWS), tile(1), op.end];
  const sections = [
    [1, sized(vector([0x60, vector(I32, I32, I32, I32, I32, I32), vector()]))],
    [2, sized(vector([name("page"), name("memory"), 0x02, 0x00, 1]))],
    [3, sized(vector(0))],
    [7, sized(vector([name("matmul"), 0x00, 0]))],
    [10, sized(vector(sized(code)))],
  ];
  return new Uint8Array([0, ...name("asm")[1], 1, 0, 0, 0, ...sections.flat(Infinity)]);
}

/** `matmul` of an arena, without WebAssembly. */
function matmulPlain(out, weight, x, width, rows, stride) {
  let row = 0;
  for (; row + 4 <= rows; row += 4) {
    const [a, b, c, d] = [row * stride, (row + 1) * stride, (row + 2) * stride, (row + 3) * stride];
    let [sumA, sumB, sumC, sumD] = [0, 0, 0, 0];
    for (let at = 0; at < width; at++) {
      const factor = x[at];
      sumA += factor * weight[a + at];
      sumB += factor * weight[b + at];
      sumC += factor * weight[c + at];
      sumD += factor * weight[d + at];
    }
    out[row] = sumA;
    out[row + 1] = sumB;
    out[row + 2] = sumC;
    out[row + 3] = sumD;
  }
  for (; row < rows; row++) {
    let sum = 0;
    for (let at = 0; at < width; at++) sum += x[at] * weight[row * stride + at];
    out[row] = sum;
  }
}

/**
 * The memory that holds weights, keys, values and activations, and the matmul over it.
 *
 * `alloc(length)` gives a Float32Array of zeros in it. `matmul(out, weight, x, width, rows, stride)` writes `rows` dot
 * products of x, `width` long, with rows of `weight` that begin `stride` floats apart; all three are from `alloc`.
 * Where a browser has no WebAssembly with SIMD, or does not allow it, plain JavaScript computes; `kind` says which.
 */
function createArena(floats, useWasm = true) {
  const bytes = 4 * floats;
  let matmul = matmulPlain;
  let buffer = null;
  let kind = "JavaScript";
  if (useWasm) {
    try {
      const compiled = new WebAssembly.Module(assembleModule());
      const memory = new WebAssembly.Memory({ initial: Math.ceil(bytes / 65536) });
      const { exports } = new WebAssembly.Instance(compiled, { page: { memory } });
      buffer = memory.buffer;
      kind = "WebAssembly";
      matmul = (out, weight, x, width, rows, stride) =>
        exports.matmul(out.byteOffset, weight.byteOffset, x.byteOffset, 4 * width, rows, 4 * stride);
    } catch {
      buffer = null; // no SIMD, or a policy against compiling
    }
  }
  buffer ??= new ArrayBuffer(bytes);
  let used = 0;
  const alloc = (length) => {
    const view = new Float32Array(buffer, 4 * used, length);
    used += paddedLength(length);
    return view;
  };
  return { alloc, matmul, kind };
}

/** Floats that an allocation takes: whole vectors of four. */
function paddedLength(length) {
  return Math.ceil(length / 4) * 4;
}

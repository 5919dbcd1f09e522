import { KERNEL } from "./kernel_wasm.js";
import { decodeBase64 } from "./weights.js";

const PAGE_BYTES = 65536; // of WebAssembly

/**
 * Creates the memory that holds weights, keys, values and activations, and the matmul over it:
 * WebAssembly with SIMD.
 *
 * `alloc(length)` returns a Float32Array of zeros in it. `matmul(out, weight, x, width, rows,
 * stride)` writes to `out` the dot products of x, which is `width` long, with `rows` rows of
 * `weight`, which begin `stride` floats apart. All three arrays must be from `alloc`.
 */
export function createArena(floats) {
  const memory = new WebAssembly.Memory({ initial: Math.ceil((4 * floats) / PAGE_BYTES) });
  const module = new WebAssembly.Module(decodeBase64(KERNEL));
  const { exports } = new WebAssembly.Instance(module, { env: { memory } });
  const kernel = /** @type {(...addressesAndSizes: number[]) => void} */ (exports.matmul);
  let used = 0; // floats
  const alloc = (length) => {
    const view = new Float32Array(memory.buffer, 4 * used, length);
    used += paddedLength(length);
    return view;
  };
  const matmul = (out, weight, x, width, rows, stride) =>
    kernel(out.byteOffset, weight.byteOffset, x.byteOffset, width, rows, stride);
  return { alloc, matmul };
}

/**
 * Floats that an allocation takes: whole SIMD vectors of four, so that each array begins at a
 * multiple of 16 bytes.
 */
export function paddedLength(length) {
  return Math.ceil(length / 4) * 4;
}

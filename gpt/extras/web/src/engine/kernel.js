import { KERNEL } from "./kernel_wasm.js";
import { decodeBase64 } from "./weights.js";

/**
 * The memory that holds weights, keys, values and activations, and the matmul over it, by WebAssembly with SIMD.
 *
 * `alloc(length)` gives a Float32Array of zeros in it. `matmul(out, weight, x, width, rows, stride)` writes `rows` dot
 * products of x, `width` long, with rows of `weight` that begin `stride` floats apart; all three are from `alloc`.
 */
export function createArena(floats) {
  const memory = new WebAssembly.Memory({ initial: Math.ceil((4 * floats) / 65536) });
  const { exports } = new WebAssembly.Instance(new WebAssembly.Module(decodeBase64(KERNEL)), { env: { memory } });
  const kernel = /** @type {(...addressesAndSizes: number[]) => void} */ (exports.matmul);
  let used = 0;
  const alloc = (length) => {
    const view = new Float32Array(memory.buffer, 4 * used, length);
    used += paddedLength(length);
    return view;
  };
  const matmul = (out, weight, x, width, rows, stride) =>
    kernel(out.byteOffset, weight.byteOffset, x.byteOffset, width, rows, stride);
  return { alloc, matmul };
}

/** Floats that an allocation takes: whole vectors of four. */
export function paddedLength(length) {
  return Math.ceil(length / 4) * 4;
}

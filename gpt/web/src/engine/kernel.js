import { KERNEL } from "./kernel_wasm.js";
import { decodeBase64 } from "./weights.js";

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
export function createArena(floats, useWasm = true) {
  const compiled = useWasm ? compileKernel(4 * floats) : null;
  const buffer = compiled?.buffer ?? new ArrayBuffer(4 * floats);
  let used = 0;
  const alloc = (length) => {
    const view = new Float32Array(buffer, 4 * used, length);
    used += paddedLength(length);
    return view;
  };
  return { alloc, matmul: compiled?.matmul ?? matmulPlain, kind: compiled ? "WebAssembly" : "JavaScript" };
}

/** A memory of so many bytes, and the kernel over it; null without SIMD, or under a policy against compiling. */
function compileKernel(bytes) {
  try {
    const memory = new WebAssembly.Memory({ initial: Math.ceil(bytes / 65536) });
    const { exports } = new WebAssembly.Instance(new WebAssembly.Module(decodeBase64(KERNEL)), { env: { memory } });
    const kernel = /** @type {(...addressesAndSizes: number[]) => void} */ (exports.matmul);
    const matmul = (out, weight, x, width, rows, stride) =>
      kernel(out.byteOffset, weight.byteOffset, x.byteOffset, width, rows, stride);
    return { buffer: memory.buffer, matmul };
  } catch {
    return null;
  }
}

/** Floats that an allocation takes: whole vectors of four. */
export function paddedLength(length) {
  return Math.ceil(length / 4) * 4;
}

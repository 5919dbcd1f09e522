// Writes src/engine/kernel_wasm.js from what `npm run kernel` has compiled.
import { readFileSync, writeFileSync } from "node:fs";

const base64 = readFileSync("../../../build/kernel.wasm").toString("base64");
const lines = [
  "// kernel.c, compiled by `npm run kernel`.",
  "export const KERNEL =",
  `  "${base64}";`,
  "",
];
writeFileSync("src/engine/kernel_wasm.js", lines.join("\n"));

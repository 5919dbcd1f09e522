/** Logits (V) after each of some ids. */
export function logitsAfter(model, ids) {
  return ids.map((id, position) => Float32Array.from(model.step(id, position)));
}

/** Why a page does not compute what the model does that it was made from, or null; `top` are ids with their logits. */
export function findProblem(model, { ids, top, most }) {
  let difference = NaN;
  try {
    const logits = logitsAfter(model, ids).at(-1);
    difference = Math.max(...top.map(([id, logit]) => Math.abs(logits[id] - logit)));
  } catch {
    // what it cannot compute differs too
  }
  if (difference <= most) return null;
  return (
    "This page does not compute what its model computes, so it shows nothing: a logit differs by " +
    `${difference.toPrecision(2)}, and ${most.toPrecision(2)} is allowed. Export it again, in another format.`
  );
}

const START = { prompt: "", count: 300, temperature: 0.8, "top-k": 0, "top-p": 1, seed: 1337 };

/** Shows the form of `showWrite` with what was in it last, here or in another view. */
function showPlaygroundWriter(root, context, models, events = {}) {
  const { temperature, top_k: topK, top_p: topP } = context.facts?.sample ?? START;
  const first = { ...START, temperature: Math.min(2, temperature), "top-k": topK ?? 0, "top-p": topP ?? 1 };
  const read = () => ({ ...first, ...recall("write", {}) });
  const writer = showWrite(root, { ...read(), most: data.mostTokens }, context.source, models, {
    changed: (values) => remember("write", values),
    ...events,
  });
  return () => writer.fill(read());
}

views.push({
  ...WRITE_VIEW,
  show(root, context) {
    return showPlaygroundWriter(root, context, [{ name: () => context.model }], {
      written: (text) => {
        context.text = text;
        remember("text", text);
      },
    });
  },
});

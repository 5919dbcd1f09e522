const START = { prompt: "", count: 300, temperature: 0.8, "top-k": 0, "top-p": 1, seed: 1337 };

/** Shows the form of `showWrite` with what was in it last, here or in another view. */
function showPlaygroundWriter(root, context, models, events = {}) {
  const start = { ...START, ...recall("write", {}), most: data.mostTokens };
  const writer = showWrite(root, start, context.source, models, {
    changed: (values) => remember("write", values),
    ...events,
  });
  return () => writer.fill({ ...START, ...recall("write", {}) });
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

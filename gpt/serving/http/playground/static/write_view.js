const START = { prompt: "", count: 300, temperature: 0.8, seed: 1337 };

/** Shows the form of `showWrite` with what was in it last, here or in another view. */
function showPlaygroundWriter(root, context, models, events = {}) {
  const { temperature, ...sample } = context.facts?.sample ?? START;
  const filters = Object.entries(data.filters).map(([name, { default: off }]) => [fieldOf(name), sample[name] ?? off]);
  const first = { ...START, temperature: Math.min(2, temperature), ...Object.fromEntries(filters) };
  const read = () => ({ ...first, ...recall("write", {}) });
  const writer = showWrite(root, { ...read(), most: data.mostTokens, filters: data.filters }, context.source, models, {
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

const MOST_TOKENS = 20000;

/** Opens the page on the model in it. */
function openPage() {
  const model = new Model(data, decodeBase64(byId("weights").textContent));
  const { temperature, "top-k": topK, "top-p": topP } = data.start;
  const source = new LocalSource(model, new Tokenizer(data.tokenizer), data.labels, { temperature, topK, topP });
  const context = { source, models: [""], model: "", text: data.start.prompt };
  const { block_size: window } = model.config;
  views.push(
    {
      ...WRITE_VIEW,
      show(root) {
        const written = (text) => {
          context.text = text;
        };
        showWrite(root, { ...data.start, most: MOST_TOKENS }, source, [{ name: () => context.model }], { written });
      },
    },
    readingView(context, "attention", "Attention", Math.min(96, window), (body, view) => {
      whenThemeChanges(body, showAttention({ ...view, layer: 0, head: 0 }));
    }),
    readingView(context, "lens", "Logit lens", Math.min(96, window), showLens),
    readingView(context, "surprisal", "Surprisal", window, showSurprisal)
  );
  startShell(context);
}

/** A view of the end of a text, at most so many characters; `show(body, view)` fills the template of the same name. */
function readingView(context, name, title, most, show) {
  return {
    name,
    title,
    sentence: guideOf(name),
    show: (root) =>
      showReadingForm(root, {
        least: name === "surprisal" ? 2 : 1,
        most,
        written: () => context.text,
        ask: (request) => context.source[name](request),
        show: (body, view) => {
          fillFrom(body, name);
          show(body, view, context.source);
        },
      }),
  };
}

openPage();

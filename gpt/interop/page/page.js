const MAX_TOKENS = 20000;

/** Opens the page on the model in it. */
function openPage() {
  const model = new Model(data, decodeBase64(byId("weights").textContent));
  const problem = findProblem(model, data.probe);
  if (problem) {
    byId("view").replaceChildren(create("output", "status wrong", problem));
    return;
  }
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
        showWrite(root, { ...data.start, most: MAX_TOKENS }, source, [{ name: () => context.model }], { written });
      },
    },
    ...["attention", "lens", "surprisal"].map((name) => readingView(name, () => window))
  );
  startShell(context);
}

openPage();

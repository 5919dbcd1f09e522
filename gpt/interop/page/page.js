const MOST_TOKENS = 20000;
const MOST_ATTENTION = 96;

/** Opens the page on the model in it. */
function openPage() {
  const model = new Model(data, decodeBase64(byId("weights").textContent));
  const { temperature, "top-k": topK, "top-p": topP } = data.start;
  const source = new LocalSource(model, new Tokenizer(data.tokenizer), data.labels, { temperature, topK, topP });
  const context = { source, models: [""], model: "", text: data.start.prompt };
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
    {
      name: "attention",
      title: "Attention",
      sentence: "",
      show(root) {
        return showReadingForm(root, {
          least: 1,
          most: Math.min(MOST_ATTENTION, model.config.block_size),
          written: () => context.text,
          ask: (request) => source.attention(request),
          show: (body, view) => {
            fillFrom(body, "attention");
            darkTheme.onchange = showAttention({ ...view, layer: 0, head: 0 });
          },
        });
      },
    }
  );
  startShell(context);
}

openPage();

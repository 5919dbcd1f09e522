/** The views of a text, each a function that fills the elements of the template of the same name. */
const READING_VIEWS = {
  attention: { title: "Attention", least: 1, most: 128, show: showAttention },
  lens: { title: "Logit lens", least: 1, most: 128, show: showLens },
  surprisal: { title: "Surprisal", least: 2, most: 1024, show: showSurprisal },
  trace: { title: "Shapes", least: 1, most: 128, show: showTrace },
};

/** A view for the shell that reads a text; `windowOf(context)` is the most characters that the model takes. */
function readingView(name, windowOf) {
  const { title, least, most, show } = READING_VIEWS[name];
  return {
    name,
    title,
    sentence: guideOf(name),
    show: (root, context) =>
      showReadingForm(root, {
        least,
        most: () => Math.min(most, windowOf(context)),
        written: () => context.text,
        model: () => context.model,
        ask: (request) => context.source[name](request),
        show: (body, view, request) => {
          fillFrom(body, name);
          show(body, { ...view, ...request }, context.source);
        },
      }),
  };
}

/** What to look for in a view, as its template says. */
function guideOf(name) {
  return byId(`${name}-template`).content.querySelector(".guide").textContent.trim().replace(/\s+/g, " ");
}

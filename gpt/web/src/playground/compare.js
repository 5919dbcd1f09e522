import { create, recall, remember, setOptions } from "../dom.js";

const ONE_MODEL = "This server has one model only; train another one, or name two with --checkpoint.";

/** The view of two models; `showWriter(root, context, models)` shows the form. */
export function comparing(showWriter) {
  return {
    name: "compare",
    title: "Compare",
    sentence:
      "Two models continue one prompt with the same random numbers. Look for the bar between two characters where " +
      "their texts part.",
    more:
      "Bits per character say how surprised each model was by what it wrote itself: the texts are different ones, so " +
      "fewer bits are no better model, and a text that repeats itself has few. Which model predicts a text better is " +
      "said by Surprisal, where both read the same one, and by the validation loss in Runs.",
    show(root, context) {
      const { models, model } = context;
      const other = models.find((name) => name !== model) ?? model;
      const chosen = recall("compare", [model, other]);
      const labels = ["First model ", "Second model "].map((title) =>
        create("label", "model", title, create("select"))
      );
      const selects = labels.map((label) => label.querySelector("select"));
      selects.forEach((select, side) => setOptions(select, models, chosen[side]));
      root.classList.add("comparing");
      if (models.length === 1) root.before(create("p", "hint", ONE_MODEL));
      root.addEventListener("change", () =>
        remember(
          "compare",
          selects.map((select) => select.value)
        )
      );
      const sides = selects.map((select, side) => ({ name: () => select.value, heading: labels[side] }));
      return showWriter(root, context, sides);
    },
  };
}

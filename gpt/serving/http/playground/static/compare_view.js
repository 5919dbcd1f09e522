const ONE_MODEL = "This server has one model only; train another one, or name two with --checkpoint.";

views.push({
  name: "compare",
  title: "Compare",
  sentence:
    "Two models continue one prompt with the same random numbers. Look for where their texts part, at the bar between " +
    "two characters, and for how much fainter, that is likelier, the better model's characters are.",
  show(root, context) {
    const { models, model } = context;
    const other = models.find((name) => name !== model) ?? model;
    const sides = [["First model", recall("compare", [])[0] ?? model], ["Second model", recall("compare", [])[1] ?? other]];
    const selects = sides.map(([title, chosen]) => buildModelSelect(title, models, chosen));
    root.classList.add("comparing");
    if (models.length === 1) root.before(create("p", "hint", ONE_MODEL));
    root.addEventListener("change", () => remember("compare", selects.map((select) => select.value)));
    return showPlaygroundWriter(
      root,
      context,
      selects.map((select) => ({ name: () => select.value, heading: select.parentElement }))
    );
  },
});

function buildModelSelect(title, names, chosen) {
  const select = document.createElement("select");
  select.append(...names.map((name) => new Option(name, name)));
  select.value = names.includes(chosen) ? chosen : names[0];
  const label = create("label", "model", `${title} `);
  label.append(select);
  return select;
}

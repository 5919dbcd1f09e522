import { create, recall, remember, setOptions } from "../dom.js";
import { compact, describeRough, withCommas } from "./words.js";

const PASTED = "pasted";
const HOUR = 3600; // seconds
const CORPUS_TITLES = { shakespeare: "Tiny Shakespeare", pydocs: "Python's own documentation" };

/** The form that starts a training, among the parts of its view. `act(action, body)` does what it asks. */
export class TrainingForm {
  constructor(parts, source, act) {
    this.parts = parts;
    this.source = source;
    this.corpora = [];
    this.recipes = [];
    this.recipe = recall("recipe", "quickstart");
    this.isTextChosen = false; // by the reader; until then it is the one that the recipe was made for
    this.asked = "";
    this.isBusy = false;
    this.listen(act);
    this.load();
  }

  listen(act) {
    const { form, recipes, corpus, text, file, goOn, runName, unfinished } = this.parts;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const chosen = corpus.value === PASTED ? { text: text.value } : { corpus: corpus.value };
      const name = runName.value ? { name: runName.value } : {};
      act("start", { recipe: this.recipe, ...chosen, ...name }).then((isDone) => {
        if (isDone) runName.value = "";
      });
    });
    recipes.addEventListener("change", (event) => {
      this.recipe = event.target.value;
      remember("recipe", this.recipe);
      this.suitText(this.recipes);
      this.showCorpus();
    });
    corpus.addEventListener("change", () => {
      this.isTextChosen = true;
      this.showCorpus();
    });
    text.addEventListener("change", () => this.showCorpus());
    text.addEventListener("input", () => this.setStart());
    file.addEventListener("change", async () => {
      if (!file.files.length) return;
      text.value = await file.files[0].text();
      this.showCorpus();
    });
    goOn.addEventListener("click", () => act("resume", { name: unfinished.value }));
  }

  /** Asks for the recipes, and how long they take on the chosen text. */
  async load() {
    const { fault } = this.parts;
    const text = this.describeText();
    const key = JSON.stringify(text);
    if (key === this.asked) return;
    this.asked = key;
    try {
      // at first there is something to choose before the machine has been measured
      for (const measured of this.recipes.length ? [true] : [false, true]) {
        const choices = await this.source.trainingChoices({ ...text, measured });
        this.setCorpora(choices);
        if (this.asked !== key) return; // they are of another text
        this.setRecipes(choices, measured);
      }
    } catch (error) {
      if (this.asked !== key) return;
      this.asked = "";
      if (error.status !== 403) fault.textContent = error.message;
    }
  }

  /** What the server is to know of the chosen text. */
  describeText() {
    const { value } = this.parts.corpus;
    const text = this.parts.text.value;
    if (value === PASTED) return { characters: text.length, vocabulary: new Set(text).size || 1 };
    const corpus = this.corpora.find(({ file, source }) => (file ?? source) === value);
    return corpus ? { characters: corpus.characters, corpus: value } : { characters: 0 };
  }

  setCorpora({ corpora, recipes }) {
    if (!recipes.some(({ name }) => name === this.recipe)) this.recipe = recipes[0]?.name;
    if (JSON.stringify(this.corpora) !== JSON.stringify(corpora)) {
      this.corpora = corpora;
      const options = corpora.map((corpus) => new Option(describeCorpus(corpus), corpus.file ?? corpus.source));
      const own = new Option("A text of your own: paste it, or open a file", PASTED);
      setOptions(this.parts.corpus, [...options, own]);
      this.parts.corpus.disabled = false;
    }
    this.suitText(recipes);
    this.showCorpus();
  }

  /** Chooses the text that the recipe was made for, unless the reader has chosen one. */
  suitText(recipes) {
    const suited = recipes.find(({ name }) => name === this.recipe)?.source;
    const isThere = this.corpora.some(({ source, file }) => source === suited && !file);
    if (!this.isTextChosen && isThere) this.parts.corpus.value = suited;
  }

  setRecipes({ recipes }, isMeasured) {
    const { recipes: list, noRecipes, estimate } = this.parts;
    this.recipes = recipes;
    const isFocused = list.contains(document.activeElement);
    list.replaceChildren(...this.createRecipes());
    if (isFocused) list.querySelector(":checked")?.focus();
    noRecipes.hidden = recipes.length > 0;
    estimate.textContent = isMeasured
      ? "A time with a run's name follows from its pace; the others are rough."
      : "These times are rough: this machine is being measured.";
    this.setStart();
  }

  /** Those that end within an hour, and the others where they are asked for. */
  createRecipes() {
    const isQuick = ({ seconds }) => seconds[1] <= HOUR;
    const quick = this.recipes.filter(isQuick).map((recipe) => createRecipe(recipe, this.recipe));
    const slow = this.recipes.filter((recipe) => !isQuick(recipe));
    if (!slow.length) return quick;
    const summary = create("summary", "", `${slow.length} may take longer than an hour`);
    const others = create(
      "details",
      "slow-recipes",
      summary,
      ...slow.map((recipe) => createRecipe(recipe, this.recipe))
    );
    const isChosen = slow.some(({ name }) => name === this.recipe);
    others.open = !quick.length || isChosen || Boolean(this.parts.recipes.querySelector("details")?.open);
    return [...quick, others];
  }

  showCorpus() {
    const { corpus, paste, characters, text } = this.parts;
    paste.hidden = corpus.value !== PASTED;
    characters.textContent = `${withCommas(text.value.length)} characters`;
    this.setStart();
    this.load();
  }

  setStart() {
    const { start, corpus, text } = this.parts;
    start.disabled = this.isBusy || !this.recipes.length || (corpus.value === PASTED && !text.value);
  }

  /** Names the run that is being trained; null: there is none. */
  setBusy(name) {
    const { busy, goOn } = this.parts;
    this.isBusy = name !== null;
    busy.textContent = this.isBusy ? `${name} is being trained; one at a time.` : "";
    goOn.disabled = this.isBusy;
    this.setStart();
    if (!this.isBusy) this.load();
  }

  /** Offers unfinished runs; the list stays as it is, under the reader's hand, where they are the same. */
  setUnfinished(names) {
    const { unfinishedLine, unfinished } = this.parts;
    unfinishedLine.hidden = names.length === 0;
    const known = [...unfinished.options].map(({ value }) => value);
    if (names.join("\n") !== known.join("\n")) setOptions(unfinished, names);
  }
}

function createRecipe({ name, about, parameters, max_steps: steps, tokens_per_step: tokens, seconds, like }, chosen) {
  const radio = Object.assign(create("input"), {
    type: "radio",
    name: "recipe",
    value: name,
    checked: name === chosen,
  });
  const facts = `${withCommas(parameters)} parameters, ${withCommas(steps)} steps of ${withCommas(tokens)} tokens`;
  return create(
    "label",
    "recipe",
    radio,
    create("span", "recipe-name", name),
    create("span", "recipe-time", describeRange(seconds)),
    create("span", "recipe-about", `${about} ${facts}${like ? `; timed by the run ${like}` : ""}.`)
  );
}

function describeCorpus({ source, file, characters, begins }) {
  const size = `${compact(characters)} characters`;
  if (source !== "file") return `${CORPUS_TITLES[source] ?? source}, ${size}`;
  return begins ? `“${begins}…”, ${size}` : `${file}, ${size}`;
}

function describeRange(seconds) {
  const [least, most] = seconds.map(describeRough);
  return least === most ? `about ${least}` : `${least} to ${most}`;
}

views.push({
  name: "training",
  title: "Train",
  sentence:
    "Choose a text and a recipe, and watch a model learn it. Look for the steep fall of the loss in the first steps, " +
    "when the model learns how often each letter comes, and for the slow one after it, when it learns words.",
  show: (root, context) => showTraining(root, null, context.source),
});

const PASTED = "pasted";
const HOUR = 3600; // seconds
const ENDINGS = { 0: "Done", 130: "Stopped and saved", 143: "Stopped and saved", [-15]: "Stopped before it began" }; // by exit code
const CORPUS_TITLES = { shakespeare: "Tiny Shakespeare", pydocs: "Python's own documentation" };

/** Fills `root` with a form that starts a training, and with the one that runs. `data`: what `source.training()` returns. */
function showTraining(root, data, source) {
  fillFrom(root, "training");
  const find = (name) => root.querySelector(`[data-part="${name}"]`);
  const curves = new FollowedCurves(source);
  const draw = showCurves(find("loss"), find("rate"), find("speed"));
  let form = null; // built once training is allowed
  let token = "";
  let shownSample = "";
  let isActing = false;
  let isRefused = false;

  /** Starts, stops or goes on, once at a time. */
  async function act(action, body) {
    if (isActing) return;
    isActing = true;
    find("fault").textContent = "";
    try {
      show(await source.changeTraining(action, token, body));
      if (action !== "stop") find("current").scrollIntoView({ block: "nearest" });
    } catch (error) {
      find("fault").textContent = error.message;
    }
    isActing = false;
    poll();
  }

  function show(status) {
    token = status.token;
    const { training } = status;
    form ??= showTrainingForm(find("form"), source, act);
    find("allowed").hidden = false;
    find("status").textContent = "";
    find("current").hidden = !training;
    const isBusy = training !== null && training.state !== "ended";
    form.setBusy(isBusy ? training.run.name : null);
    if (training) showCurrent(training);
  }

  function showCurrent({ run, state, exit_code: code, lines, command, can_stop: canStop }) {
    find("name").textContent = run.name;
    find("state").textContent = describeTraining(run, state, code);
    find("state").classList.toggle("wrong", state === "ended" && !(code in ENDINGS));
    find("reason").textContent = state === "ended" && !(code in ENDINGS) ? (lines.at(-1) ?? "") : "";
    find("progress").max = run.max_steps ?? 1;
    find("progress").value = run.step;
    find("progress").hidden = run.max_steps === null;
    find("stop").hidden = state === "ended" || !canStop;
    find("stop").disabled = state === "stopping";
    find("resume").hidden = state !== "ended" || !isUnfinished(run);
    const links = state === "ended" && run.has_checkpoint ? buildModelLinks(run.name) : [];
    if (find("links").childElementCount !== links.length) find("links").replaceChildren(...links);
    find("stop").parentElement.hidden = find("stop").hidden && find("resume").hidden;
    const printed = find("console");
    const isAtEnd = printed.scrollTop + printed.clientHeight >= printed.scrollHeight - 4;
    printed.textContent = lines.join("\n");
    if (isAtEnd) printed.scrollTop = printed.scrollHeight;
    find("command").textContent = command;
    find("command").parentElement.hidden = command === "";
  }

  async function followRun(name) {
    const run = await curves.update(name);
    draw([{ run, hue: 0 }]);
    const step = run.samples.at(-1);
    find("sample").hidden = step === undefined;
    if (step === undefined || shownSample === `${name} ${step}`) return;
    shownSample = `${name} ${step}`;
    const { text } = await source.sample({ name, step });
    find("sample-title").textContent = `What it wrote at step ${step.toLocaleString("en")}`;
    find("sample-text").textContent = text;
  }

  const poll = pollWhileVisible(root, async () => {
    if (isRefused) return;
    try {
      const status = data ?? (await source.training());
      data = null;
      show(status);
      const run = status.training?.run;
      find("curves").hidden = !run?.max_steps;
      if (run?.max_steps) await followRun(run.name);
      form.setRuns((await source.runs()).runs);
    } catch (error) {
      isRefused = error.status === 403;
      find("status").textContent = isRefused ? `${capitalized(error.message)}.` : `${error.message}; trying again.`;
      find("allowed").hidden = isRefused;
    }
  });

  find("stop").addEventListener("click", () => act("stop", { name: find("name").textContent }));
  find("resume").addEventListener("click", () => act("resume", { name: find("name").textContent }));
  return poll;
}

function isUnfinished(run) {
  return run.max_steps !== null && run.step < run.max_steps && !run.training && !run.problem;
}

function capitalized(text) {
  return text[0].toUpperCase() + text.slice(1);
}

function describeTraining(run, state, code) {
  const steps = run.max_steps === null ? "" : `step ${run.step.toLocaleString("en")} of ${run.max_steps.toLocaleString("en")}`;
  const best = run.best_val_loss === null ? "" : `best validation loss ${run.best_val_loss.toFixed(4)} nats per token`;
  const left = run.seconds_left === null ? "" : `about ${describeRough(run.seconds_left)} left`;
  const ended = ENDINGS[code] ?? "Ended with an error";
  const words = { starting: "Starting", training: "Training", stopping: "Saving a checkpoint, then it stops", ended };
  return `${[words[state], steps, left, best].filter((part) => part).join(" · ")}.`;
}

/** Fills `root` with the form. `act(action, body)` does what it asks. Returns `setBusy(name or null)`, `setRuns(runs)`. */
function showTrainingForm(root, source, act) {
  const find = (name) => root.querySelector(`[data-part="${name}"]`);
  let corpora = [];
  let recipes = [];
  let recipe = recall("recipe", "quickstart");
  let isTextChosen = false; // by the reader; until then it is the one that the recipe was made for
  let asked = "";
  let isBusy = false;

  async function load() {
    const text = describeText();
    const key = JSON.stringify(text);
    if (key === asked) return;
    asked = key;
    try {
      const choices = await source.trainingChoices(text);
      setCorpora(choices);
      if (asked === key) setChoices(choices); // else they are of another text
    } catch (error) {
      if (asked !== key) return;
      asked = "";
      find("measuring").hidden = true;
      if (error.status !== 403) find("fault").textContent = error.message;
    }
  }

  function setChoices(choices) {
    recipes = choices.recipes;
    const isFocused = find("recipes").contains(document.activeElement);
    find("recipes").replaceChildren(...buildRecipes());
    if (isFocused) find("recipes").querySelector(":checked")?.focus();
    find("measuring").hidden = true;
    find("no-recipes").hidden = recipes.length > 0;
    const [low, high] = choices.utilization.map((share) => `${Math.round(100 * share)} %`);
    find("estimate").textContent =
      "Where a run is named, the time follows from its pace. The others are rough: they assume that training reaches " +
      `${low} to ${high} of the matmul rate that was measured on this machine. Other work on it, such as answering ` +
      "requests, makes training slower.";
    setStart();
  }

  /** Those that end within an hour, and the others where they are asked for. */
  function buildRecipes() {
    const isQuick = ({ seconds }) => seconds[1] <= HOUR;
    const [quick, slow] = [recipes.filter(isQuick), recipes.filter((entry) => !isQuick(entry))];
    if (!slow.length) return quick.map(buildRecipe);
    const others = create("details", "slow-recipes");
    const isChosen = slow.some(({ name }) => name === recipe);
    others.open = !quick.length || isChosen || Boolean(find("recipes").querySelector("details")?.open);
    others.append(create("summary", "", `${slow.length} may take longer than an hour`), ...slow.map(buildRecipe));
    return [...quick.map(buildRecipe), others];
  }

  function setCorpora(choices) {
    if (!choices.recipes.some(({ name }) => name === recipe)) recipe = choices.recipes[0]?.name;
    if (JSON.stringify(corpora) !== JSON.stringify(choices.corpora)) {
      corpora = choices.corpora;
      const select = find("corpus");
      const chosen = select.value;
      const options = corpora.map((corpus) => new Option(describeCorpus(corpus), corpus.file ?? corpus.source));
      select.replaceChildren(...options, new Option("A text of your own: paste it, or open a file", PASTED));
      select.value = [...select.options].some(({ value }) => value === chosen) ? chosen : options[0].value;
      select.disabled = false;
    }
    suitText(choices.recipes);
    showCorpus();
  }

  /** Chooses the text that the recipe was made for, unless the reader has chosen one. */
  function suitText(known) {
    const suited = known.find(({ name }) => name === recipe)?.source;
    if (!isTextChosen && corpora.some((corpus) => corpus.source === suited && !corpus.file)) find("corpus").value = suited;
  }

  function buildRecipe({ name, about, parameters, max_steps: steps, tokens_per_step: tokens, seconds, like }) {
    const label = create("label", "recipe");
    const radio = create("input", "");
    Object.assign(radio, { type: "radio", name: "recipe", value: name, checked: name === recipe });
    const facts = `${parameters.toLocaleString("en")} parameters, ${steps.toLocaleString("en")} steps of ${tokens.toLocaleString("en")} tokens`;
    label.append(
      radio,
      create("span", "recipe-name", name),
      create("span", "recipe-time", describeRange(seconds)),
      create("span", "recipe-about", `${about} ${facts}${like ? `; timed by the run ${like}` : ""}.`)
    );
    return label;
  }

  /** What the server is to know of the chosen text. */
  function describeText() {
    const { value } = find("corpus");
    const text = find("text").value;
    if (value === PASTED) return { characters: text.length, vocabulary: new Set(text).size || 1 };
    const corpus = corpora.find(({ file, source: name }) => (file ?? name) === value);
    return corpus ? { characters: corpus.characters, corpus: value } : { characters: 0 };
  }

  function showCorpus() {
    const isPasted = find("corpus").value === PASTED;
    find("paste").hidden = !isPasted;
    find("characters").textContent = `${find("text").value.length.toLocaleString("en")} characters`;
    setStart();
    load();
  }

  function setStart() {
    find("start").disabled = isBusy || !recipes.length || (find("corpus").value === PASTED && !find("text").value);
  }

  root.addEventListener("submit", (event) => {
    event.preventDefault();
    const { value } = find("corpus");
    const text = value === PASTED ? { text: find("text").value } : { corpus: value };
    const name = find("run-name").value ? { name: find("run-name").value } : {};
    act("start", { recipe, ...text, ...name }).then(() => (find("run-name").value = ""));
  });
  find("recipes").addEventListener("change", (event) => {
    recipe = event.target.value;
    remember("recipe", recipe);
    suitText(recipes);
    showCorpus();
  });
  find("corpus").addEventListener("change", () => {
    isTextChosen = true;
    showCorpus();
  });
  find("text").addEventListener("change", showCorpus);
  find("text").addEventListener("input", setStart);
  find("file").addEventListener("change", async (event) => {
    const [file] = event.target.files;
    if (!file) return;
    find("text").value = await file.text();
    showCorpus();
  });
  find("go-on").addEventListener("click", () => act("resume", { name: find("unfinished").value }));
  load();

  function setBusy(name) {
    isBusy = name !== null;
    find("busy").textContent = isBusy ? `${name} is being trained; one at a time.` : "";
    find("go-on").disabled = isBusy;
    setStart();
    if (!isBusy) load();
  }

  function setRuns(runs) {
    const names = runs.filter(isUnfinished).map(({ name }) => name);
    find("unfinished-line").hidden = names.length === 0;
    const select = find("unfinished");
    if (names.join("\n") === [...select.options].map(({ value }) => value).join("\n")) return;
    const chosen = select.value;
    select.replaceChildren(...names.map((name) => new Option(name, name)));
    if (names.includes(chosen)) select.value = chosen;
  }

  return { setBusy, setRuns };
}

function describeCorpus({ source, file, characters, begins }) {
  const size = `${compact(characters)} characters`;
  if (source !== "file") return `${CORPUS_TITLES[source] ?? source}, ${size}`;
  return begins ? `“${begins}…”, ${size}` : `${file}, ${size}`;
}

function describeRange([low, high]) {
  const [least, most] = [low, high].map(describeRough);
  return least === most ? `about ${least}` : `${least} to ${most}`;
}

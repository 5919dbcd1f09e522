views.push({
  name: "runs",
  title: "Runs",
  sentence:
    "Look for where the validation loss stops falling while the training loss goes on: from there a model learns its " +
    "text by heart. In the samples, letters come first, then words, then lines that make sense.",
  show: (root, context) => showRuns(root, null, context.source),
});

/** Fills `root` with the runs, their curves and samples. `data` may hold what `source.runs()` returns; null: it is asked. */
function showRuns(root, data, source) {
  fillFrom(root, "runs");
  const find = (name) => root.querySelector(`[data-part="${name}"]`);
  const curves = new FollowedCurves(source);
  const draw = showCurves(find("loss"), find("rate"), find("speed"));
  const samples = showSamples(find("samples"), source);
  const rows = new Map();
  const hues = new Map();
  let models = new Set(); // names that the server can load
  let isFirst = true;

  function setRuns(runs) {
    find("none").hidden = runs.length > 0;
    for (const run of runs) if (!rows.has(run.name)) rows.set(run.name, buildRow(run.name));
    for (const name of [...rows.keys()].filter((name) => !runs.some((run) => run.name === name))) {
      rows.get(name).element.remove();
      rows.delete(name);
      hues.delete(name);
    }
    const order = runs.map(({ name }) => rows.get(name).element);
    if (order.some((element, index) => find("list").children[index] !== element)) find("list").append(...order);
    runs.forEach((run) => rows.get(run.name).describe(run));
    if (isFirst && runs.length) choose(runs.find(({ training }) => training) ?? runs.find(({ problem }) => !problem), true);
    isFirst = isFirst && !runs.length;
  }

  function buildRow(name) {
    const element = create("div", "run");
    const label = create("label", "run-label");
    const box = create("input", "");
    box.type = "checkbox";
    const swatch = create("span", "swatch");
    const facts = create("span", "run-facts");
    label.append(box, swatch, create("span", "run-name", name), facts);
    const actions = create("span", "run-actions");
    element.append(label, actions);
    box.addEventListener("change", () => choose({ name }, box.checked));
    const row = { element, box, swatch };
    row.describe = (run) => {
      facts.textContent = describeRunFacts(run);
      facts.classList.toggle("live", run.training);
      row.run = run;
      if (models.has(name) && !actions.childElementCount) actions.append(...buildModelLinks(name));
    };
    return row;
  }

  async function choose(run, isChosen) {
    const row = rows.get(run?.name);
    if (!row) return;
    row.box.checked = isChosen;
    if (isChosen) {
      const taken = new Set(hues.values());
      const free = [...Array(HUES * DASHES).keys()].find((hue) => !taken.has(hue));
      hues.set(run.name, free ?? hues.size % (HUES * DASHES));
    } else hues.delete(run.name);
    row.swatch.className = isChosen ? `swatch ${hueClass(hues.get(run.name))}` : "swatch";
    await follow();
  }

  /** Asks for what is new of the chosen runs, and draws it. */
  async function follow() {
    const names = [...hues.keys()];
    await Promise.all(
      names.map(async (name) => {
        const known = curves.get(name);
        const isDone = known && !rows.get(name)?.run.training && known.step === rows.get(name)?.run.step;
        if (!isDone) await curves.update(name);
      })
    );
    const chosen = [...hues].map(([name, hue]) => ({ run: curves.get(name), hue })).filter(({ run }) => run);
    draw(chosen, { across: find("across").value, isLog: find("log").checked });
    find("thinned").textContent = describeThinning(chosen);
    samples.set(chosen.map(({ run }) => run));
  }

  const poll = pollWhileVisible(root, async () => {
    try {
      const { runs } = data ?? (await source.runs());
      data = null;
      if (runs.some(({ name, has_checkpoint: isSaved }) => isSaved && !models.has(name))) {
        models = new Set(await source.models());
      }
      setRuns(runs);
      await follow();
      say("");
    } catch (error) {
      say(`${error.message}; trying again.`);
    }
  });

  function say(message) {
    find("status").textContent = message;
    find("status").classList.toggle("wrong", message !== "");
  }

  for (const part of ["across", "log"]) find(part).addEventListener("change", follow);
  return poll;
}

function describeRunFacts(run) {
  if (run.problem) return run.problem;
  const { config } = run;
  const whole = run.max_steps === null ? "" : ` of ${run.max_steps.toLocaleString("en")}`;
  const left = run.seconds_left === null ? "" : `, about ${describeRough(run.seconds_left)} left`;
  const best = run.best_val_loss === null ? "" : `best ${run.best_val_loss.toFixed(4)} nats at step ${run.best_step}`;
  const size = run.parameters === null ? "" : `${run.parameters.toLocaleString("en")} parameters`;
  const shape = `${config["model.n_layer"]} layers of ${config["model.n_embd"]}, ${config["model.block_size"]} positions`;
  const state = `${run.training ? "training: " : ""}step ${run.step.toLocaleString("en")}${whole}${left}`;
  return [state, best, size, shape, config["optim.name"]].filter((part) => part).join(" · ");
}

function describeThinning(chosen) {
  const thinned = chosen.filter(({ run }) => run.every > 1).map(({ run }) => `${run.name}: one of ${run.every}`);
  return thinned.length ? `Points of the training loss that are plotted: ${thinned.join(", ")}.` : "";
}

/** Links that open a run's checkpoint in other views. */
function buildModelLinks(name) {
  const targets = { write: "Write", attention: "Attention" };
  return Object.entries(targets)
    .filter(([view]) => views.some((other) => other.name === view))
    .map(([view, title]) => {
      const link = create("a", "", title);
      link.href = `#${view}`;
      link.title = `${title} with ${name}`;
      link.addEventListener("click", () => chooseModel(name));
      return link;
    });
}

/** Chooses a model in the head of the page; one that has come since the page was opened is added. */
function chooseModel(name) {
  const select = byId("model");
  if (![...select.options].some(({ value }) => value === name)) select.append(new Option(name, name));
  select.value = name;
  select.dispatchEvent(new Event("change"));
}

/** Fills `root` with the samples of one of several runs by step. Returns `set(runs)`. */
function showSamples(root, source) {
  const find = (name) => root.querySelector(`[data-part="${name}"]`);
  let runs = [];
  let shown = "";
  let isLast = true; // the last sample is followed until another is chosen

  function set(given) {
    runs = given.filter(({ samples }) => samples.length);
    root.hidden = !runs.length;
    if (!runs.length) return;
    const select = find("sample-run");
    const chosen = runs.some(({ name }) => name === select.value) ? select.value : runs[0].name;
    select.replaceChildren(...runs.map(({ name }) => new Option(name, name)));
    select.value = chosen;
    setRange();
  }

  function setRange() {
    const range = find("sample-step");
    const { samples } = runs.find(({ name }) => name === find("sample-run").value);
    const place = isLast ? samples.length - 1 : Math.min(Number(range.value), samples.length - 1);
    range.max = samples.length - 1;
    range.value = place;
    range.disabled = samples.length < 2;
    show(find("sample-run").value, samples[place]);
  }

  async function show(name, step) {
    find("sample-at").textContent = `step ${step.toLocaleString("en")}`;
    find("sample-step").setAttribute("aria-valuetext", `step ${step}`);
    if (shown === `${name} ${step}`) return;
    shown = `${name} ${step}`;
    const sample = await source.sample({ name, step }).catch((error) => ({ text: error.message }));
    if (shown === `${name} ${step}`) find("sample-text").textContent = sample.text + (sample.truncated ? "…" : "");
  }

  find("sample-run").addEventListener("change", () => {
    isLast = true;
    setRange();
  });
  find("sample-step").addEventListener("input", (event) => {
    isLast = event.target.value === event.target.max;
    setRange();
  });
  return { set };
}

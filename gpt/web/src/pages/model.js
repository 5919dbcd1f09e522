import { create } from "../dom.js";
import { Model } from "../engine/model.js";
import { findProblem, logitsAfter } from "../engine/probe.js";
import { LocalSource } from "../engine/source.js";
import { Tokenizer } from "../engine/tokenizer.js";
import { decodeBase64 } from "../engine/weights.js";
import { startShell } from "../shell.js";
import { readingView } from "../views/reading.js";
import { WRITE, Writer } from "../views/write.js";

// What Node, which has no document, checks a page by.
export { decodeBase64, findProblem, logitsAfter, Model };

const MAX_TOKENS = 20000;
const FILTERS = {
  top_k: {
    type: "integer",
    default: 0,
    minimum: 0,
    description: "Sample from the k most likely characters only; 0: from all.",
  },
  top_p: {
    type: "number",
    default: 1,
    exclusiveMinimum: 0,
    maximum: 1,
    description: "Sample from the most likely characters only that together have this probability; 1: from all.",
  },
};

/** Opens the page on the model in it. */
function openPage() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const main = document.querySelector("main");
  const model = new Model(data, decodeBase64(document.getElementById("weights").textContent));
  const problem = findProblem(model, data.probe);
  if (problem) {
    main.append(create("output", "status wrong", problem));
    return;
  }
  const { temperature, "top-k": topK, "top-p": topP, prompt } = data.start;
  const source = new LocalSource(model, new Tokenizer(data.tokenizer), data.labels, { temperature, topK, topP });
  const context = { source, models: [""], model: "", text: prompt };
  const write = (root) => {
    const written = (text) => {
      context.text = text;
    };
    const start = { ...data.start, most: MAX_TOKENS, filters: FILTERS };
    new Writer(root, start, source, [{ name: () => context.model }], { written });
  };
  const readings = ["picture", "attention", "lens", "surprisal"].map((name) =>
    readingView(name, () => model.config.block_size)
  );
  const nav = Object.assign(create("nav"), { id: "views", ariaLabel: "Views" });
  const root = Object.assign(create("div"), { id: "view" });
  main.append(create("div", "shell", nav), root);
  startShell(nav, root, [{ ...WRITE, show: write }, ...readings], context);
}

if (globalThis.document) openPage();

/**
 * Fills `root` with a field for a text, and with what `show(body, answer, { model, text })` makes of what
 * `ask({ model, text, signal })` answers for it, at once and when the form is sent; a text shorter than `least` is not
 * read at once, and of a longer one than `most()` only the end is. `written()` is the text that was written last, and
 * `model()` the name of the model that reads.
 *
 * Returns a function that reads the text written last where that has changed, and the same one with another model.
 */
function showReadingForm(root, { least, most, written, model, ask, show }) {
  fillFrom(root, "reading_form");
  const [form, field, status, body] = ["form", "textarea", ".status", ".reading-body"].map((selector) =>
    root.querySelector(selector)
  );
  let running = null;
  let last = null;
  let reader = null; // the model that has read

  async function read() {
    running?.abort();
    running = new AbortController();
    const { signal } = running;
    reader = model();
    const characters = [...field.value];
    const request = { model: reader, text: characters.slice(-most()).join("") };
    say("Reading…");
    try {
      const answer = await ask({ ...request, signal });
      if (signal.aborted) return;
      say(characters.length > most() ? `Only the last ${most()} of ${characters.length} characters are read.` : "");
      show(body, answer, request);
    } catch (error) {
      if (!signal.aborted) say(error.message, true);
    }
  }

  function say(message, isWrong = false) {
    status.textContent = message;
    status.classList.toggle("wrong", isWrong);
  }

  function follow() {
    const isSame = written() === last;
    if (isSame && model() === reader) return;
    last = written();
    if (!isSame) field.value = [...last].slice(-most()).join("");
    if ([...field.value].length >= least) read();
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    read();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  follow();
  return follow;
}

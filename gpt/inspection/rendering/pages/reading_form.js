/** What to look for in a view, as its template says. */
function guideOf(name) {
  return byId(`${name}-template`).content.querySelector(".guide").textContent.trim().replace(/\s+/g, " ");
}

/**
 * Fills `root` with a field for a text, and with what `show(body, answer)` makes of what `ask({ text, signal })` answers
 * for it, at once and when the form is sent; a text shorter than `least` is not read at once, and of a longer one than
 * `most` only the end is. `written()` is the text that was written last.
 *
 * Returns a function that reads the text written last, where that has changed.
 */
function showReadingForm(root, { least, most, written, ask, show }) {
  fillFrom(root, "reading_form");
  const [form, field, status, body] = ["form", "textarea", ".status", ".reading-body"].map((selector) =>
    root.querySelector(selector)
  );
  let running = null;
  let last = null;

  async function read() {
    running?.abort();
    running = new AbortController();
    const { signal } = running;
    const characters = [...field.value];
    const text = characters.slice(-most).join("");
    say(characters.length > most ? `Only the last ${most} of ${characters.length} characters are read.` : "");
    try {
      const answer = await ask({ text, signal });
      if (!signal.aborted) show(body, answer);
    } catch (error) {
      if (!signal.aborted) say(error.message, true);
    }
  }

  function say(message, isWrong = false) {
    status.textContent = message;
    status.classList.toggle("wrong", isWrong);
  }

  function follow() {
    if (written() === last) return;
    last = written();
    const characters = [...last].slice(-most);
    field.value = characters.join("");
    if (characters.length >= least) read();
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

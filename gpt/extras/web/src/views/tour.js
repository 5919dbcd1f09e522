import { create, createButton } from "../dom.js";
import { many } from "../tokens.js";

const SCROLL_MILLISECONDS = 1200; // most that a browser takes to scroll smoothly to a card's part

/**
 * The cards of a tour through a picture: a title, a sentence or two, and a name. The first part of
 * the picture whose `card` is that name is what it is about; of "head", it is the one that is drawn
 * over the full width. `unit` is the word for a token.
 */
function describeCards({ config }, unit) {
  const { n_embd: width, vocab_size: vocabulary } = config;
  return [
    {
      name: "text",
      title: "Your text",
      about: `The model reads it ${unit} by ${unit}. At each place it guesses which one comes next.`,
    },
    {
      name: "embedding",
      title: "Numbers",
      about: `Each ${unit} is looked up in a table: ${width} numbers, which training has found.`,
    },
    {
      name: "stream",
      title: "The stream",
      about: "The numbers flow down through the model. Each part reads them, and adds its own.",
    },
    {
      name: "head",
      title: "One head looks back",
      about: "It fetches from earlier places. The thicker the arc, the more comes from there.",
    },
    {
      name: "mlp",
      title: "The MLP",
      about: "It works on one place alone, and turns what is there into new numbers.",
    },
    {
      name: "bars",
      title: "The bars",
      about: `What has become of the numbers is compared with ${many(vocabulary, unit)}: each gets its chance to come next.`,
    },
  ];
}

/**
 * A tour through a picture. Its cards stand above the picture, and the one that was chosen also
 * beside what it is about.
 */
export class Tour {
  /**
   * `parts` are the elements of the template. `show(name)` chooses the part that a card is about,
   * and returns the element to scroll to and to outline.
   */
  constructor(parts, view, unit, show) {
    this.parts = parts;
    this.show = show;
    this.number = null; // of the chosen card, counted from 0
    this.outlined = null; // the element that it is about
    this.arrivesAt = -Infinity; // when the page stands still again
    this.cards = describeCards(view, unit);
    this.buttons = this.cards.map(({ title, about }, number) => {
      const button = createButton("tour-card", "", () => this.start(number));
      button.append(create("b", "", `${number + 1}. ${title}`), create("span", "note", about));
      return button;
    });
    parts.tour.replaceChildren(...this.buttons.map((button) => create("li", "", button)));
    parts.tourBack.addEventListener("click", () => this.choose(this.number - 1, parts.tourBack));
    parts.tourNext.addEventListener("click", () => this.choose(this.number + 1, parts.tourNext));
    parts.tourEnd.addEventListener("click", () => this.end());
  }

  /** Whether the page may still be scrolling to the part of a card. */
  get isOnTheWay() {
    return performance.now() < this.arrivesAt;
  }

  /** Chooses a card from those above; the focus moves to where the next one can be chosen. */
  start(number) {
    this.choose(number, this.parts.tourNext);
  }

  /**
   * Chooses a card, and gives the focus to a button beside it: to another one where this one leads
   * no further.
   */
  choose(number, button) {
    this.unmark();
    this.number = number;
    const { name, title, about } = this.cards[number];
    const { card, cardPlace, cardTitle, cardAbout, tourBack, tourNext, tourEnd } = this.parts;
    card.hidden = false;
    cardPlace.textContent = `${number + 1} of ${this.cards.length}`;
    cardTitle.textContent = title;
    cardAbout.textContent = about;
    tourBack.disabled = number === 0;
    tourNext.disabled = number === this.cards.length - 1;
    const focused = [button, tourNext, tourEnd].find(({ disabled }) => !disabled);
    focused.focus({ preventScroll: true });
    this.buttons[number].setAttribute("aria-current", "step");
    this.arrivesAt = performance.now() + SCROLL_MILLISECONDS;
    this.outlined = this.show(name);
    this.outlined.classList.add("toured");
    const prefersStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.outlined.scrollIntoView({ block: "center", behavior: prefersStill ? "auto" : "smooth" });
  }

  /** Hides the chosen card; the focus moves to where it can be chosen again. */
  end() {
    this.unmark();
    this.buttons[this.number].focus();
    this.number = null;
    this.parts.card.hidden = true;
  }

  /** Removes the marks of the chosen card, and those of its part. */
  unmark() {
    this.outlined?.classList.remove("toured");
    this.buttons[this.number]?.removeAttribute("aria-current");
  }
}

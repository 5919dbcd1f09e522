import { colorOfBits, isLightColor } from "./colors.js";
import { SIGNS } from "./marks.js";
import { describeMaking, describeText } from "./views/about.js";

// Sizes of a card, in pixels, as gpt/extras/export/card.py has them: those of a picture that other
// sites show beside a link.
const WIDTH = 1200;
const HEIGHT = 630;
const MARGIN = 60;
const FONT = 26; // of the text
const LINE = 38;
const SMALL_FONT = 22; // of what is said about the model

/**
 * Saves tokens as a picture `name`.png: each on the color of its probability, over what the `facts`
 * say about the model. A token has `text`, `probability`, which is null of the first, and
 * `isGiven`.
 */
export function saveCard(tokens, facts, name) {
  const canvas = document.createElement("canvas");
  drawCard(canvas, tokens, facts);
  const anchor = document.createElement("a");
  anchor.href = canvas.toDataURL("image/png");
  anchor.download = `${name}.png`;
  anchor.click();
}

function drawCard(canvas, tokens, facts) {
  Object.assign(canvas, { width: WIDTH, height: HEIGHT });
  const context = canvas.getContext("2d");
  const style = getComputedStyle(document.body);
  const { backgroundColor, color, fontFamily } = style;
  context.fillStyle = backgroundColor;
  context.fillRect(0, 0, WIDTH, HEIGHT);
  context.textBaseline = "middle";
  context.font = `${FONT}px ${style.getPropertyValue("--mono")}`;
  const cell = context.measureText("M").width;
  for (const { text, column, row, token } of placed(tokens, cell)) {
    const x = MARGIN + column * cell;
    const y = MARGIN + row * LINE;
    context.fillStyle = color;
    if (token.probability !== null) {
      const rgb = colorOfBits(-Math.log2(token.probability));
      context.fillStyle = `rgb(${rgb.join(" ")})`;
      context.fillRect(x, y, Math.ceil(cell * [...text].length), LINE - 4);
      context.fillStyle = isLightColor(rgb) ? "#000" : "#fff";
    }
    context.fillText(text, x, y + (LINE - 4) / 2);
    context.fillStyle = color;
    if (token.isGiven) context.fillRect(x, y + LINE - 6, cell * [...text].length, 2);
  }
  context.fillStyle = color;
  context.font = `${SMALL_FONT}px ${fontFamily}`;
  context.fillText(describeMaking(facts), MARGIN, HEIGHT - MARGIN / 2 - 36, WIDTH - 2 * MARGIN);
  context.font = `bold ${SMALL_FONT}px ${fontFamily}`;
  context.fillText(describeText(facts), MARGIN, HEIGHT - MARGIN / 2, WIDTH);
}

/** The pieces of tokens with their columns and rows, as far as a card has room for them. */
function* placed(tokens, cell) {
  const columns = Math.floor((WIDTH - 2 * MARGIN) / cell);
  const rows = Math.floor((HEIGHT - 3 * MARGIN) / LINE);
  let column = 0;
  let row = 0;
  for (const token of tokens) {
    if (token.text === "\n" || SIGNS.has(token.text)) {
      if (row > 0 || column > 0) row++;
      column = 0;
      continue;
    }
    const { length } = [...token.text];
    if (column + length > columns) {
      row++;
      column = 0;
    }
    if (row >= rows) return;
    yield { text: token.text, column, row, token };
    column += length;
  }
}

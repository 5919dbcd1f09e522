const UNKNOWN_WINDOW = 64; // characters that are read where a model's facts are not there yet

for (const name of Object.keys(READING_VIEWS)) {
  views.push(readingView(name, ({ facts }) => facts?.block_size ?? UNKNOWN_WINDOW));
}

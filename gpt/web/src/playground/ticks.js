/** Round values between two, about `count` of them. */
export function niceTicks(low, high, count) {
  const raw = (high - low || 1) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5].find((factor) => factor * power >= raw) ?? 10);
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index++) {
    ticks.push(Number((index * step).toPrecision(12)));
  }
  return ticks;
}

/** Round values between two powers of ten; where these are close, as far apart as niceTicks has them. */
export function logTicks(low, high) {
  const ticks = [];
  for (let power = Math.floor(low); power <= high; power++) {
    for (const factor of [1, 2, 5]) ticks.push(Number((factor * 10 ** power).toPrecision(12)));
  }
  const inside = ticks.filter((tick) => Math.log10(tick) >= low && Math.log10(tick) <= high);
  return inside.length >= 3 ? inside : niceTicks(10 ** low, 10 ** high, 6).filter((tick) => tick > 0);
}

/** Places of labels, in order, as far apart as `least` and none beyond `most`. */
export function spread(places, least, most) {
  const apart = [...places];
  for (let index = 1; index < apart.length; index++) apart[index] = Math.max(apart[index], apart[index - 1] + least);
  let below = most + least;
  for (let index = apart.length - 1; index >= 0; index--) {
    apart[index] = Math.min(apart[index], below - least);
    below = apart[index];
  }
  return apart;
}

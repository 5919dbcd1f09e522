/** A number of any size in few characters. */
export function compact(value) {
  return value >= 10000
    ? new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 }).format(value)
    : Number(value.toPrecision(3)).toLocaleString("en");
}

export function withCommas(value) {
  return value.toLocaleString("en");
}

export function describeSeconds(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 90 * 60) {
    const rest = Math.round(seconds % 60);
    return seconds < 600 && rest ? `${Math.floor(seconds / 60)} min ${rest} s` : `${Math.round(seconds / 60)} min`;
  }
  return seconds < 36 * 3600 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} days`;
}

/** A time without more digits than an estimate has. */
export function describeRough(seconds) {
  if (seconds >= 600) return describeSeconds(seconds);
  const step = seconds < 60 ? 10 : 30;
  return describeSeconds((seconds < 60 ? Math.ceil(seconds / step) : Math.round(seconds / step)) * step);
}

/** Parts of a line that are there, one after another. */
export function joined(...parts) {
  return parts.filter((part) => part).join(" · ");
}

import { READINGS } from "./views/reading.js";

/** A page of one view: its kind and its data. */
const { kind, view } = JSON.parse(document.getElementById("data").textContent);
READINGS[kind].show(document.querySelector("main"), view);

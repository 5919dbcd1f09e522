import { showLens } from "../views/lens.js";

showLens(document.querySelector("main"), JSON.parse(document.getElementById("data").textContent));

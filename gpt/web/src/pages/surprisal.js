import { showSurprisal } from "../views/surprisal.js";

showSurprisal(document.querySelector("main"), JSON.parse(document.getElementById("data").textContent));

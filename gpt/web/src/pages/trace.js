import { showTrace } from "../views/trace.js";

showTrace(document.querySelector("main"), JSON.parse(document.getElementById("data").textContent));

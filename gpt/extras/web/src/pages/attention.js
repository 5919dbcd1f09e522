import { showAttention } from "../views/attention.js";

showAttention(
  document.querySelector("main"),
  JSON.parse(document.getElementById("data").textContent)
);

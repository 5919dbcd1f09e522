import { showPicture } from "../views/picture.js";

showPicture(
  document.querySelector("main"),
  JSON.parse(document.getElementById("data").textContent)
);

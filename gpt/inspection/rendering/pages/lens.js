showLens(document.querySelector("main"), data);

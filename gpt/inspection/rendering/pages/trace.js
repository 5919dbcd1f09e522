showTrace(document.querySelector("main"), data);

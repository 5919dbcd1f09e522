showSurprisal(document.querySelector("main"), data);

showAttention(document.querySelector("main"), data);

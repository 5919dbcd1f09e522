// Browsers refuse workers to pages that are opened from a folder: a hidden frame runs the worker of the search instead.
// The theme loads such a script from the network unless there is one of this name, and asks for `IFrameWorker`.
if (location.protocol === "file:") {
  const load = (target, source) =>
    new Promise((resolve, reject) => {
      const script = target.createElement("script");
      target.body.append(Object.assign(script, { src: source, onload: resolve, onerror: reject }));
    });

  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(source) {
      super();
      this.frame = Object.assign(document.createElement("iframe"), { hidden: true });
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.document.open(); // else Firefox would load an empty document over the scripts
      inside.document.write("<body></body>");
      inside.document.close();
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = async (...sources) => {
        for (const each of sources) await load(inside.document, each);
      };
      this.ready = load(inside.document, source);
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}

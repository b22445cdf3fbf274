// Search from disk: browsers start no worker from a file, so its script runs in a hidden frame.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      this.inner.answer = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inner.document.open();
      this.inner.document.write(
        `<script>postMessage = answer; importScripts = () => Promise.resolve();<\/script>
         <script src="${url}"><\/script>`,
      );
      this.inner.document.close();
    }

    postMessage(data) {
      this.inner.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {}
  };
  window.Worker = window.IFrameWorker;
}

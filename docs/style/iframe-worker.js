// Browsers start no worker from a file: there, the search of the site runs in a frame of the page
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      addEventListener("message", event => {
        if (event.source === this.inside) this.dispatchEvent(new MessageEvent("message", { data: event.data }))
      })
      this.inside.document.open()
      this.inside.document.write(
        `<script>postMessage = data => parent.postMessage(data, "*")</script><script src="${url}"></script>`
      )
      this.inside.document.close()
      this.ready = new Promise(resolve => (this.inside.onload = resolve))
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }

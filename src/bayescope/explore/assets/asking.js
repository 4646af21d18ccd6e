// Questions to the server. The answers come part by part, and a newer question ends an older one.
"use strict";
const Asking = (() => {
  // Milliseconds that a new question waits for the first part of the older one, so that a drag shows steps on its way.
  const WAIT = 300;

  async function post(question, take, signal) {
    const reply = await fetch("answer", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question), signal,
    });
    if (!reply.ok) throw new Error((await reply.text()).trim());
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      lines.forEach((text) => take(JSON.parse(text)));
    }
  }

  // Calls `on.first` before the first part, `on.part` for each, `on.end` after the last; `on.slow`, `on.progress`
  // and `on.failed` as they happen. `question` says what to ask at the moment when it is sent.
  function queue(question, on) {
    let running = null, waiting = null;

    function ask() {
      if (waiting !== null) return;
      const free = !running || running.took !== null ? 0 : Math.max(0, running.begun + WAIT - performance.now());
      waiting = setTimeout(send, free);
    }

    async function send() {
      drop();
      const mine = running = { control: new AbortController(), begun: performance.now(), asked: question(), took: null };
      const slow = setTimeout(() => { if (mine === running && mine.took === null) on.slow(); }, WAIT);
      try {
        await post({ ask: "answer", ...mine.asked }, (part) => { if (mine === running) take(part, mine); }, mine.control.signal);
      } catch (error) {
        if (mine === running && error.name !== "AbortError") on.failed(error);
      } finally {
        clearTimeout(slow);
      }
    }

    function take(part, mine) {
      if (part.part === "progress") {
        if (performance.now() - mine.begun >= WAIT) on.progress(part);
      } else if (part.part === "end") on.end(mine);
      else if (part.part !== "overtaken") {
        const first = mine.took === null;
        if (first) {
          mine.took = performance.now() - mine.begun;
          on.first();
        }
        on.part(part);
        if (first && waiting !== null) send();
      }
    }

    // Ends the question that is running: nothing of its answer is taken any more.
    function drop() {
      clearTimeout(waiting);
      waiting = null;
      running?.control.abort();
      running = null;
    }

    return { ask, drop };
  }

  return { post, queue };
})();

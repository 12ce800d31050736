"use strict";
/* The page's side of the engine: `ask(request)` returns a promise of its answer.

The engine runs in a worker made of the page's own scripts, so that the page answers to clicks while it computes. Where
a browser refuses that, it runs here. */

const ENGINE_SCRIPTS = ["packing", "tokenizer", "bilm", "softmax", "clusters", "uses", "engine"];

class Client {
  constructor() {
    this.waiting = new Map();
    this.count = 0;
    this.engine = null;
    try {
      const sources = ENGINE_SCRIPTS.map((name) => document.getElementById(`script-${name}`).textContent);
      const address = URL.createObjectURL(new Blob([...sources, "\nserve();\n"], { type: "text/javascript" }));
      this.worker = new Worker(address);
      this.worker.onmessage = ({ data }) => this.receive(data);
      this.worker.onerror = () => this.runHere();
    } catch {
      this.runHere();
    }
  }

  get runsInWorker() {
    return this.engine === null;
  }

  /* Answer what waits, and all that follows, in the page itself. */
  runHere() {
    this.engine = new Engine();
    for (const [id, { request }] of this.waiting) this.answerHere(id, request);
  }

  async answerHere(id, request) {
    try {
      await new Promise((resolve) => setTimeout(resolve, 0)); // lets the page be drawn
      this.receive({
        id,
        answer: await this.engine.answer(request, (done, of) => this.receive({ id, progress: [done, of] })),
      });
    } catch (error) {
      this.receive({ id, error: error.message });
    }
  }

  ask(request, progress = () => {}) {
    const id = ++this.count;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { request, resolve, reject, progress });
      if (this.engine) this.answerHere(id, request);
      else this.worker.postMessage({ id, request });
    });
  }

  receive({ id, answer, error, progress }) {
    if (this.worker) this.worker.onerror = null; // it has started: its errors come as answers
    const waiting = this.waiting.get(id);
    if (!waiting) return;
    if (progress) {
      waiting.progress(...progress);
      return;
    }
    this.waiting.delete(id);
    if (error === undefined) waiting.resolve(answer);
    else waiting.reject(new Error(error));
  }
}

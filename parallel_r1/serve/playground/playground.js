"use strict";
// The playground. All text from models, files and servers is set as text, never as HTML.
(() => {
  const TAG = /(<\/?(?:Parallel|Path|Summary)>)/;
  const MOST_ROLLOUTS = 5000;
  const byId = (id) => document.getElementById(id);
  const status = byId("status");
  let key = "";
  let model = null;
  let problem = null; // the problem that was picked: {task, size, seed, question, gold}
  let shown = null; // what stands on the page and can be saved
  let running = null; // AbortController of the requests in flight
  let rollouts = [];
  let at = 0;

  function element(name, className, text) {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text !== undefined && text !== null) node.textContent = String(text);
    return node;
  }

  function say(text, bad) {
    status.textContent = text;
    status.classList.toggle("bad", Boolean(bad));
  }

  // --- one response, drawn while it comes ---

  class Run {
    constructor(title) {
      this.title = title;
      this.blocks = [];
      this.text = null; // the open stretch of the main chain
      this.trace = [];
      this.tokens = 0;
      this.critical = 0;
      this.began = performance.now();
      this.first = null;
      this.figures = null;
      this.verdict = null;
      this.node = element("section", "run");
      this.node.setAttribute("aria-label", title);
      const head = element("header");
      this.numbers = element("span", "numbers");
      head.append(element("h3", "", title), this.numbers);
      this.chain = element("div", "chain");
      this.end = element("div", "verdict");
      this.end.hidden = true;
      this.node.append(head, this.chain, this.end);
      byId("runs").append(this.node);
    }

    add(piece) {
      const count = Number(piece.tokens) || 0;
      this.first ??= performance.now();
      this.tokens += count;
      if (piece.region === "main") return this.addMain(piece.text, count);
      this.settle(this.text);
      this.text = null;
      const block = this.block(piece.block);
      if (piece.region === "path") this.addPath(block, piece, count);
      else if (piece.region === "summary") this.addSummary(block, piece, count);
      else this.addBetween(block, piece, count);
    }

    addMain(text, count) {
      this.critical += count;
      if (!this.text) {
        const last = this.blocks[this.blocks.length - 1];
        if (last) this.settle(last.summaryBox);
        this.text = element("div", "text live");
        this.chain.append(this.text);
        this.trace.push(this.text);
      }
      // Line breaks around a block are layout here; they stay in the text, unseen.
      const edge = this.text.textContent.trim() ? "" : /^\n*/.exec(text)[0];
      if (edge) this.text.append(element("span", "edge", edge));
      this.text.append(text.slice(edge.length));
    }

    block(index) {
      while (this.blocks.length <= index) {
        const node = element("section", "block");
        const head = element("div", "join");
        head.append(element("b", "", "Block " + (this.blocks.length + 1)));
        const lanes = element("div", "lanes");
        lanes.tabIndex = 0;
        lanes.setAttribute("role", "group");
        lanes.setAttribute("aria-label", "Paths of block " + (this.blocks.length + 1));
        node.append(head, lanes);
        this.chain.append(node);
        const block = { node, lanes, paths: [], longest: 0, opening: "", between: "", summary: null, summaryBox: null, closed: false };
        this.blocks.push(block);
        this.trace.push(block);
      }
      return this.blocks[index];
    }

    addPath(block, piece, count) {
      while (block.paths.length <= piece.path) {
        const node = element("div", "lane live");
        const head = element("div", "head");
        const size = element("span", "", "0 tokens");
        const mark = element("span", "mark");
        const text = element("div", "text");
        head.append(element("b", "", "Path " + (block.paths.length + 1)), size, mark);
        node.append(head, text);
        block.lanes.append(node);
        block.paths.push({ node, size, mark, text, tokens: 0, closed: false });
      }
      const path = block.paths[piece.path];
      path.tokens += count;
      path.size.textContent = path.tokens + " tokens";
      const grown = Math.max(0, path.tokens - block.longest);
      block.longest += grown;
      this.critical += grown;
      if (!piece.tag) path.text.append(piece.text);
      else if (piece.text === "</Path>") {
        path.closed = true;
        this.settle(path.node);
      }
    }

    addSummary(block, piece, count) {
      this.critical += count;
      block.paths.forEach((path) => this.settle(path.node));
      if (!block.summary) {
        block.summaryBox = element("div", "summary live");
        block.summary = element("div", "text");
        block.summaryBox.append(element("div", "head", "Summary"), block.summary);
        block.node.append(block.summaryBox);
      }
      if (!piece.tag) block.summary.append(piece.text);
      else if (piece.text === "</Summary>") {
        block.closed = true;
        this.settle(block.summaryBox);
      }
    }

    addBetween(block, piece, count) {
      this.critical += count;
      if (piece.tag && piece.text === "<Parallel>") return;
      if (!block.paths.length && !piece.tag && /^\s*\d*\s*$/.test(piece.text)) {
        block.opening += piece.text; // the model says how many paths it wants
        return;
      }
      block.between += piece.text;
      if (piece.tag || !piece.text.trim()) return;
      block.stray ??= block.node.insertBefore(element("div", "fault"), block.summaryBox);
      block.stray.append(piece.text);
    }

    settle(node) {
      if (node) node.classList.remove("live");
    }

    count() {
      const seconds = ((this.last ?? performance.now()) - this.began) / 1000;
      const words = [this.tokens + " tokens", this.critical + " on the critical path"];
      if (this.live !== false) words.unshift(seconds.toFixed(1) + " s");
      if (this.live !== false && this.first) words.push("first after " + ((this.first - this.began) / 1000).toFixed(2) + " s");
      if (this.figures?.truncated) words.push("cut by a limit");
      this.numbers.textContent = words.join(" · ");
    }

    finish(figures) {
      this.last = performance.now();
      this.node.querySelectorAll(".live").forEach((node) => this.settle(node));
      if (figures) {
        this.figures = figures;
        this.tokens = figures.tokens ?? this.tokens;
        this.critical = figures.critical_path_tokens ?? this.critical;
      }
      this.count();
    }

    fail(message) {
      this.node.append(element("div", "bad", message));
    }

    judged(verdict) {
      this.verdict = verdict;
      const right = verdict.outcome === "right";
      this.end.hidden = false;
      this.end.className = "verdict " + (right ? "right" : "wrong");
      this.end.replaceChildren(element("b", "", (right ? "✓ " : "✗ ") + String(verdict.outcome).replace("_", " ")));
      for (const [name, value] of [["answer", verdict.answer], ["gold", verdict.gold], ["reward", verdict.reward]])
        if (value !== null && value !== undefined) this.end.append(element("span", "", name + " " + value + "  "));
      (Array.isArray(verdict.paths) ? verdict.paths : []).forEach((paths, b) =>
        paths.forEach((good, p) => {
          const path = this.blocks[b]?.paths[p];
          if (!path) return;
          path.node.classList.add(good ? "right" : "wrong");
          path.mark.textContent = good ? "✓ right" : "✗ not right";
        }),
      );
    }

    wholeText() {
      return this.trace
        .map((part) => {
          if (part instanceof Node) return part.textContent;
          const paths = part.paths.map((path) => "<Path>" + path.text.textContent + (path.closed ? "</Path>" : ""));
          const summary = part.summary ? "<Summary>" + part.summary.textContent + (part.closed ? "</Summary>" : "") : "";
          return "<Parallel>" + part.opening + paths.join("") + part.between + summary;
        })
        .join("");
    }
  }

  // The pieces of a finished text: the same form as those of a stream, without counts.
  function piecesOf(text) {
    const found = [];
    let block = -1;
    let path = -1;
    let place = "main";
    const put = (region, part, tag) => found.push({ region, block, path, text: part, tag });
    for (const part of text.split(TAG)) {
      if (part === "") continue;
      if (!TAG.test(part)) put(place, part, false);
      else if (part === "<Parallel>" && place === "main") {
        block += 1;
        path = -1;
        place = "block";
        put("block", part, true);
      } else if (part === "<Path>" && place === "block") {
        path += 1;
        place = "path";
        put("path", part, true);
      } else if (part === "</Path>" && place === "path") {
        put("path", part, true);
        place = "block";
      } else if (part === "</Parallel>" && (place === "block" || place === "path")) {
        place = "block";
        put("block", part, true);
      } else if (part === "<Summary>" && place === "block") {
        place = "summary";
        put("summary", part, true);
      } else if (part === "</Summary>" && place === "summary") {
        put("summary", part, true);
        place = "main";
      } else put(place, part, false);
    }
    return found;
  }

  // --- talking to the server ---

  async function call(path, body, signal) {
    const headers = body ? { "Content-Type": "application/json" } : {};
    if (key) headers.Authorization = "Bearer " + key;
    const reply = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
    if (reply.ok) return reply;
    const told = await reply.json().catch(() => null);
    const error = new Error(told?.error?.message ?? "the server answered with status " + reply.status);
    error.status = reply.status;
    throw error;
  }

  async function* events(reply) {
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts)
        if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
    }
  }

  async function follow(run, body, signal) {
    const ticking = setInterval(() => run.count(), 100);
    try {
      const reply = await call("v1/chat/completions", body, signal);
      for await (const chunk of events(reply)) {
        if (chunk.error) throw new Error(chunk.error.message);
        for (const choice of chunk.choices) {
          (choice.pieces ?? []).forEach((piece) => run.add(piece));
          if (choice.parallel) run.figures = choice.parallel;
        }
      }
      run.finish(run.figures);
      return Boolean(run.figures);
    } catch (error) {
      run.finish(null);
      run.fail(error.name === "AbortError" ? "stopped" : error.message);
      return false;
    } finally {
      clearInterval(ticking);
    }
  }

  async function ask() {
    const question = byId("question").value.trim();
    if (!question || running || !byId("form").reportValidity()) return;
    const body = { model: model.id, messages: [{ role: "user", content: question }], stream: true, fork: byId("fork").value };
    for (const [id, name] of [["paths", "paths"], ["temperature", "temperature"], ["max-tokens", "max_tokens"]])
      if (byId(id).value !== "") body[name] = Number(byId(id).value);
    body.seed = byId("seed").value === "" ? Math.floor(Math.random() * 2 ** 48) : Number(byId("seed").value);
    const known = problem?.question === question ? problem : null;
    const chains = [[body.fork === "never" ? "One chain" : "In paths", body]];
    if (byId("compare").checked) chains.push(["One chain", { ...body, fork: "never" }]);
    clear();
    running = new AbortController();
    const { signal } = running;
    busy(true);
    say("thinking…");
    const runs = chains.map(([title]) => new Run(title));
    shown = { question, model: model.id, problem: known, runs, bodies: chains.map(([, sent]) => sent) };
    const whole = await Promise.all(runs.map((run, i) => follow(run, chains[i][1], signal)));
    if (known) await Promise.all(runs.map((run, i) => whole[i] && judge(run, known)));
    running = null;
    busy(false);
    say(whole.every(Boolean) ? "done" : "ended early", !whole.every(Boolean));
  }

  async function judge(run, { task, size, seed }) {
    try {
      const reply = await call("playground/verdict", { problem: { task, size, seed }, trace: run.wholeText() });
      run.judged(await reply.json());
    } catch (error) {
      run.fail(error.message);
    }
  }

  function busy(yes) {
    byId("ask").disabled = yes;
    byId("stop").disabled = !yes;
    byId("save").disabled = yes || !shown;
  }

  // ``asked``: the question of a file; one that is asked here stands in its field.
  function clear(asked) {
    byId("runs").replaceChildren();
    byId("stepper").hidden = true;
    rollouts = [];
    byId("asked").hidden = asked === undefined;
    byId("asked-text").textContent = asked ?? "";
  }

  async function nextProblem() {
    const [task, size] = byId("task").value.split(" ");
    const seed = Math.floor(Math.random() * 2 ** 31);
    try {
      problem = await (await call("playground/problem", { task, size, seed })).json();
      byId("question").value = problem.question;
      showGold();
    } catch (error) {
      say(error.message, true);
    }
  }

  function showGold() {
    const known = problem && problem.question === byId("question").value.trim();
    byId("gold").hidden = !known;
    byId("gold").textContent = known ? "known answer: " + problem.gold : "";
  }

  // --- files ---

  function save() {
    if (!shown) return;
    const { question, problem: known, runs, bodies } = shown;
    const file = {
      format: "parallel-r1-trace", question, model: shown.model, gold: known?.gold ?? null,
      runs: runs.map((run, i) => ({
        title: run.title, text: run.wholeText(), figures: run.figures ?? { tokens: run.tokens, critical_path_tokens: run.critical },
        verdict: run.verdict, request: bodies[i] ?? null,
      })),
    };
    const link = element("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(file, null, 1)], { type: "application/json" }));
    link.download = "trace-" + new Date().toISOString().slice(0, 19).replaceAll(":", "-") + ".json";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  async function open(file) {
    running?.abort();
    say("reading " + file.name + "…");
    try {
      const { rows, more } = await linesOf(file);
      if (rows.length === 1 && rows[0]?.format === "parallel-r1-trace") return showFile(rows[0]);
      rollouts = rows.filter((row) => row && typeof row.text === "string");
      if (!rollouts.length) throw new Error("no traces or rollouts in " + file.name);
      shown = null;
      at = 0;
      showRollout();
      byId("stepper").hidden = false;
      const skipped = rows.length - rollouts.length;
      say(rollouts.length + " rollouts" + (more ? ", the file has more" : "") + (skipped ? ", " + skipped + " lines unreadable" : ""));
    } catch (error) {
      say(error.message, true);
    }
  }

  // A trace is one object; rollouts are one object a line, read until there are enough.
  async function linesOf(file) {
    const head = (await file.slice(0, 1).text()).trim();
    if (head && head !== "{") throw new Error(file.name + " holds no JSON objects");
    if (file.size < 2 ** 24) {
      const whole = parsed(await file.text());
      if (whole) return { rows: [whole], more: false };
    }
    const rows = [];
    const reader = file.stream().pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      const parts = (rest + (value ?? "")).split("\n");
      rest = done ? "" : parts.pop();
      for (const part of parts) if (part.trim()) rows.push(parsed(part));
      if (done || rows.length >= MOST_ROLLOUTS) return { rows: rows.slice(0, MOST_ROLLOUTS), more: !done };
    }
  }

  function parsed(text) {
    try {
      const value = JSON.parse(text);
      return typeof value === "object" ? value : null;
    } catch {
      return null;
    }
  }

  function draw(title, text, figures, verdict) {
    const run = new Run(title);
    run.live = false;
    piecesOf(text).forEach((piece) => run.add(piece));
    run.node.querySelectorAll(".lane .head span:first-of-type").forEach((size) => size.remove());
    run.finish(figures);
    if (verdict) run.judged(verdict);
    return run;
  }

  function showFile(file) {
    clear(String(file.question ?? ""));
    const runs = (Array.isArray(file.runs) ? file.runs : []).filter((run) => typeof run?.text === "string");
    shown = {
      question: String(file.question ?? ""), model: file.model, problem: file.gold == null ? null : { gold: file.gold },
      runs: runs.map((run) => draw(String(run.title ?? ""), run.text, run.figures ?? {}, run.verdict)),
      bodies: runs.map((run) => run.request ?? null),
    };
    busy(false);
    say("a saved trace" + (file.model ? " of " + file.model : ""));
  }

  function showRollout() {
    const row = rollouts[at];
    const kept = rollouts;
    clear(String(row.question ?? ""));
    rollouts = kept;
    const figures = { tokens: row.total_tokens, critical_path_tokens: row.critical_tokens, truncated: row.truncated };
    const verdict = row.verdict && { ...row.verdict, gold: row.gold, reward: row.reward };
    const title = [row.stage, row.step !== undefined && row.step !== null ? "step " + row.step : "", row.task, row.mode];
    draw(title.filter(Boolean).join(" · ") || "Rollout", row.text, figures, verdict);
    byId("stepper").hidden = false;
    byId("count").textContent = at + 1 + " / " + rollouts.length;
    byId("prev").disabled = at === 0;
    byId("next").disabled = at === rollouts.length - 1;
    busy(false);
  }

  function go(step) {
    const place = Math.max(0, Math.min(rollouts.length - 1, at + step));
    if (rollouts.length && place !== at) {
      at = place;
      showRollout();
    }
  }

  // --- the page ---

  async function start() {
    try {
      model = (await (await call("v1/models")).json()).data[0];
    } catch (error) {
      byId("key-form").hidden = error.status !== 401;
      if (error.status !== 401 || key) byId("key-note").textContent = error.message;
      if (error.status !== 401) byId("model").textContent = error.message;
      return;
    }
    const own = model.parallel;
    byId("key-form").hidden = true;
    byId("form").hidden = false;
    byId("model").textContent = model.id;
    document.title = model.id + " · Parallel-R1";
    const facts = [own.forks ? own.variant + " variant" : "no tags: one chain", "context of " + model.max_model_len + " tokens"];
    if (own.deterministic) facts.push("deterministic");
    byId("facts").replaceChildren(...facts.map((fact) => element("li", "", fact)));
    byId("paths").placeholder = own.paths;
    byId("temperature").placeholder = own.temperature;
    byId("max-tokens").placeholder = own.max_tokens;
    byId("max-tokens").max = model.max_model_len;
    for (const id of ["fork", "paths", "compare"]) byId(id).closest("label").hidden = !own.forks;
    byId("task").replaceChildren(
      ...own.tasks.flatMap((task) => ["easy", "hard"].map((size) => {
        const option = element("option", "", task + ", " + size);
        option.value = task + " " + size;
        return option;
      })),
    );
    byId("question").focus();
  }

  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    key = byId("key").value.trim();
    start();
  });
  byId("form").addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("problem").addEventListener("click", nextProblem);
  byId("task").addEventListener("change", nextProblem);
  byId("question").addEventListener("input", showGold);
  byId("save").addEventListener("click", save);
  byId("open").addEventListener("click", () => byId("file").click());
  byId("file").addEventListener("change", (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (file) open(file);
  });
  byId("prev").addEventListener("click", () => go(-1));
  byId("next").addEventListener("click", () => go(1));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      ask();
    }
    if (event.target.closest("input, textarea, select, .lanes") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowLeft") go(-1);
    if (event.key === "ArrowRight") go(1);
  });
  start();
})();

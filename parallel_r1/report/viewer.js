"use strict";
// The trace viewer. All text from models and data is set with textContent, never as HTML.
(() => {
  const FORCED = 1, TAG = 2;
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const controls = document.querySelector("#viewer .controls");
  const box = byId("trace");
  const FILTERS = [
    ["stage", (t) => t.stage],
    ["source", (t) => t.source],
    ["task", (t) => [t.task, t.size].filter(Boolean).join(" ")],
    ["mode", (t) => t.mode],
    ["outcome", (t) => t.outcome],
    ["blocks", (t) => String(t.num_blocks ?? 0)],
  ];
  let shown = [];
  let at = 0;

  function element(name, className, text) {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text !== undefined && text !== null) node.textContent = String(text);
    return node;
  }

  function runs(list, className) {
    const node = element("div", "text " + (className || ""));
    for (const [text, flags] of list || []) {
      const kind = (flags & TAG ? "tag " : "") + (flags & FORCED ? "forced" : "");
      node.append(kind.trim() ? element("span", kind.trim(), text) : text);
    }
    return node;
  }

  // Line breaks around a block are layout here, not text.
  function withoutEdges(list) {
    const kept = list.map(([text, flags]) => [text, flags]);
    if (kept.length) kept[0][0] = kept[0][0].replace(/^\n+/, "");
    if (kept.length) kept[kept.length - 1][0] = kept[kept.length - 1][0].replace(/\n+$/, "");
    return kept.filter(([text]) => text);
  }

  function lane(path, index) {
    const verdict = path.right === true ? " right" : path.right === false ? " wrong" : "";
    const node = element("div", "lane" + verdict);
    const head = element("div", "head");
    head.append(element("b", "", "Path " + (index + 1)));
    if (path.n !== null) head.append(element("span", "", path.n + " tokens"));
    if (path.right !== null) head.append(element("span", "mark", path.right ? "✓ right" : "✗ not right"));
    node.append(head, runs(path.r));
    if (path.gap.length) node.append(element("div", "fault", "text between paths"), runs(path.gap));
    return node;
  }

  function block(part, index) {
    const node = element("section", "block");
    const head = element("div", "join");
    head.append(element("b", "", "Block " + (index + 1)), runs(part.open, "inline"));
    const lanes = element("div", "lanes");
    lanes.tabIndex = 0;
    lanes.setAttribute("role", "group");
    lanes.setAttribute("aria-label", part.lanes.length + " paths");
    part.lanes.forEach((path, i) => lanes.append(lane(path, i)));
    node.append(head, lanes);
    if (part.close.length) {
      const close = element("div", "join");
      close.append(runs(part.close, "inline"));
      node.append(close);
    }
    if (part.summary.length) {
      const summary = element("div", "summary");
      summary.append(element("div", "head", "Summary"), runs(part.summary));
      node.append(summary);
    }
    return node;
  }

  function pair(list, name, value) {
    if (value === null || value === undefined || value === "") return;
    const item = element("div");
    item.append(element("dt", "", name), element("dd", "", value));
    list.append(item);
  }

  function fixed(value, digits) {
    return typeof value === "number" ? value.toFixed(digits).replace(/\.?0+$/, "") : value;
  }

  function show(trace) {
    box.replaceChildren();
    const head = element("div", "question");
    head.append(element("div", "head", "Question"), element("div", "text", trace.question));
    box.append(head);
    const chain = element("div", "chain");
    let blocks = 0;
    for (const part of trace.parts) {
      if (part.k === "block") chain.append(block(part, blocks++));
      else {
        const main = withoutEdges(part.r);
        if (main.length) chain.append(runs(main));
      }
    }
    box.append(chain);
    const right = trace.outcome === "right";
    const end = element("div", "verdict " + (right ? "right" : "wrong"));
    const words = String(trace.outcome ?? "?").replace("_", " ");
    end.append(element("b", "", (right ? "✓ " : "✗ ") + words));
    const list = element("dl");
    pair(list, "answer", trace.answer ?? "none");
    pair(list, "gold", trace.gold);
    pair(list, "judged by", trace.how);
    pair(list, "reward", fixed(trace.reward, 3));
    pair(list, "tokens", trace.total_tokens);
    pair(list, "critical path", trace.critical_tokens);
    pair(list, "trace", String(trace.trace_state ?? "").replace("_", " "));
    pair(list, "faults", trace.faults.join(", "));
    pair(list, "cut by a limit", trace.truncated ? "yes" : "");
    pair(list, "stage", trace.stage);
    pair(list, "step", trace.step);
    pair(list, "sample", trace.sample);
    pair(list, "mode", trace.mode);
    end.append(list);
    box.append(end);
  }

  function update() {
    byId("count").textContent = shown.length ? at + 1 + " / " + shown.length : "none";
    byId("prev").disabled = at <= 0;
    byId("next").disabled = at >= shown.length - 1;
    if (shown.length) show(shown[at]);
    else box.replaceChildren(element("p", "empty", "No trace fits this choice."));
  }

  function go(place) {
    const bounded = Math.max(0, Math.min(shown.length - 1, place));
    if (bounded !== at) {
      at = bounded;
      update();
    }
  }

  function choose() {
    shown = data.traces.filter((trace) =>
      FILTERS.every(([name, of]) => {
        const wanted = byId("f-" + name).value;
        return wanted === "" || String(of(trace)) === wanted;
      }),
    );
    at = 0;
    update();
  }

  function fill([name, of]) {
    const select = byId("f-" + name);
    const found = new Set(data.traces.map((trace) => String(of(trace))));
    const values = name === "stage" ? data.stages.filter((s) => found.delete(s)).concat([...found]) : [...found].sort();
    const all = element("option", "", "all");
    all.value = "";
    select.append(all);
    for (const value of values) {
      const option = element("option", "", value.replace("_", " "));
      option.value = value;
      select.append(option);
    }
    select.closest("label").hidden = values.length < 2;
    select.addEventListener("change", choose);
  }

  if (!data.traces.length) {
    box.append(element("p", "empty", "No rollouts have been stored yet."));
    return;
  }
  FILTERS.forEach(fill);
  // Begin with the newest model thinking in paths and getting it right, if there is such a trace.
  const last = data.stages.filter((s) => data.traces.some((t) => t.stage === s)).pop();
  byId("f-stage").value = last ?? "";
  controls.hidden = false;
  document.querySelector("#viewer .keys").hidden = false;
  byId("prev").addEventListener("click", () => go(at - 1));
  byId("next").addEventListener("click", () => go(at + 1));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    // Arrows belong to a focused list of choices, or to a box that scrolls sideways.
    const target = event.target;
    if (target.closest("select, .scroll") || (target.closest(".lanes")?.scrollWidth ?? 0) > (target.closest(".lanes")?.clientWidth ?? 0)) return;
    const inView = byId("viewer").getBoundingClientRect();
    const visible = inView.top < innerHeight && inView.bottom > 0;
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: shown.length - 1 };
    if (!visible || !(event.key in moves)) return;
    event.preventDefault();
    go(moves[event.key]);
  });
  choose();
  const first = shown.findIndex((t) => t.num_blocks > 0 && t.outcome === "right" && t.mode !== "linear");
  if (first > 0) go(first);
})();

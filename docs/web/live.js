// The living page. LIVE is made by docs/live.py: what the model computed. Here it is only shown.
"use strict";
{
  const $ = selector => document.querySelector(selector);
  const state = { sentence: 0, layer: Math.min(3, LIVE.n_layer - 1), head: 0, query: -1, cache: 0, batch: 0, row: 1 };
  const shown = token => token.replace(/\n/g, "↵").replace(/^ /, "·");

  // Make an element: text in children becomes text, null is left out.
  function make(name, options = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(options)) {
      if (key === "weight") element.style.setProperty("--weight", `${value}%`);
      else if (value !== null) element.setAttribute(key, value);
    }
    element.append(...children.filter(child => child !== null).map(child => (child.nodeType ? child : String(child))));
    return element;
  }

  const sentence = () => LIVE.sentences[state.sentence];
  const weights = step => sentence().steps[step].weights[state.layer][state.head]; // [T, n_k], in percent
  const clamp = (value, n) => Math.max(0, Math.min(n - 1, value));

  function drawWeights() {
    const rows = weights(0), tokens = sentence().tokens.slice(0, rows.length);
    state.query = state.query < 0 ? rows.length - 1 : clamp(state.query, rows.length);
    const head = make("tr", {}, make("th"), ...tokens.map(token => make("th", { scope: "col" }, shown(token))));
    const lines = rows.map((row, t) => make(
      "tr", { "data-query": t, class: t === state.query ? "chosen" : null },
      make("th", { scope: "row" }, shown(tokens[t])),
      ...row.map((weight, s) => s > t ? make("td") :
        make("td", { class: weight > 50 ? "heat high" : "heat", weight }, weight)),
    ));
    $("#heat").replaceChildren(make("thead", {}, head), make("tbody", {}, ...lines));
    const row = rows[state.query], most = row.indexOf(Math.max(...row));
    $("#told").textContent = `Layer ${state.layer}, head ${state.head}: “${shown(tokens[state.query])}” gives most, ` +
      `${row[most]} %, to “${shown(tokens[most])}”.`;
  }

  function drawCache() {
    const { tokens, steps } = sentence(), step = state.cache - 1; // step -1: nothing has run yet
    const nPrompt = weights(0).length, nSlots = nPrompt + steps.length;
    const nFull = step < 0 ? 0 : nPrompt + step, first = step <= 0 ? 0 : nFull - 1;
    const reads = step < 0 ? [] : weights(step).at(-1);
    $("#slots").replaceChildren(...Array.from({ length: nSlots }, (_, slot) => {
      const kind = slot >= nFull ? "empty" : slot >= first ? "new" : "full";
      const token = slot < nFull ? shown(tokens[slot]) : "";
      const label = `slot ${slot}: ${kind === "empty" ? "empty" : `${token}, ${kind === "new" ? "written now" : "full"}`}`;
      return make("li", { class: kind, "aria-label": label }, make("small", {}, slot), make("b", {}, token),
        make("i", { weight: reads[slot] ?? 0 }, slot < nFull ? reads[slot] : ""));
    }));
    const nothing = make("tr", {}, make("td", {}, "Nothing before the first step."));
    $("#best").replaceChildren(...step < 0 ? [nothing] : steps[step].best.map(([token, percent], i) => make(
      "tr", {}, make("th", { scope: "row" }, shown(token)), make("td", {}, make("i", { weight: percent })),
      make("td", {}, `${percent.toFixed(1)} %`), make("td", {}, i === 0 ? "chosen" : ""))));
    $("#cache .told").textContent =
      step < 0 ? `Before the first step: ${nSlots} slots, all empty. The prompt has ${nPrompt} tokens.` :
      step === 0 ? `Prefill: ${nPrompt} tokens go in at once, slots 0 to ${nPrompt - 1} are written.` :
      `Decode step ${step}: “${shown(tokens[nFull - 1])}” goes in alone and is written to slot ${nFull - 1}. ` +
      `Its query reads slots 0 to ${nFull - 1}.` + (step < steps.length - 1 ? "" :
      " The token that is chosen now is the last one wanted. It never goes in, so the last slot stays empty.");
    mark("#cache", state.cache, steps.length + 1);
  }

  function drawBatch() {
    const { rows, steps, prompts } = LIVE.batch, step = steps[state.batch], n = step.real[0].length;
    const nPrompt = steps[0].real[0].length, from = state.batch === 0 ? 0 : n - 1;
    const slots = make("tr", {}, make("th", { scope: "row", colspan: 2 }, "slot"),
      ...Array.from({ length: n }, (_, s) => make("td", {}, s)));
    const lines = rows.flatMap((tokens, b) => [
      ["token", s => shown(tokens[s])], ["mask", s => step.real[b][s]], ["position", s => step.positions[b][s]],
    ].map(([name, value], i) => make(
      "tr", { class: b === state.row ? "chosen" : null },
      i > 0 ? null : make("th", { scope: "rowgroup", rowspan: 3 },
        make("button", { "data-row": b, "aria-pressed": b === state.row }, `row ${b}`)),
      make("th", { scope: "row" }, name),
      ...Array.from({ length: n }, (_, s) =>
        make("td", { class: !step.real[b][s] ? "pad" : s >= from ? "new" : null }, value(s))))));
    const focused = document.activeElement?.dataset?.row;
    $("#rows").replaceChildren(make("tbody", {}, slots, ...lines));
    if (focused !== undefined) $(`#rows [data-row="${state.row}"]`).focus();

    const tokens = rows[state.row];
    $("#which").textContent = `row ${state.row}, “${prompts[state.row]}”,`;
    $("#mask").replaceChildren(
      make("thead", {}, make("tr", {}, make("th"), ...tokens.slice(0, n).map(token => make("th", {}, shown(token))))),
      make("tbody", {}, ...step.visible[state.row].map((keys, t) => make(
        "tr", {}, make("th", { scope: "row" }, shown(tokens[from + t])),
        ...keys.map((sees, s) => make("td", { class: sees ? "sees" : step.real[state.row][s] ? "hides" : "pad" },
          sees ? "0" : "-1e10"))))));
    $("#batch .told").textContent = (state.batch === 0 ?
      `Prefill: ${nPrompt} columns go in at once. Short prompts have pads on the left, so all end in the last column.` :
      `Decode step ${state.batch}: one new token for each row goes in, all in slot ${n - 1}, at positions ` +
      `${step.positions.map(row => row.at(-1)).join(", ")}.`) +
      ` Next: ${step.next.map(token => `“${shown(token)}”`).join(", ")}.`;
    mark("#batch", state.batch, steps.length);
  }

  // Tell by the buttons where a part can go from here. They keep the focus, so they are not disabled for good.
  function mark(part, at, n) {
    for (const button of document.querySelectorAll(`${part} [data-go]`))
      button.setAttribute("aria-disabled", button.dataset.go === "1" ? at === n - 1 : at === 0);
  }

  function go(part, by) {
    const n = part === "cache" ? sentence().steps.length + 1 : LIVE.batch.steps.length;
    state[part] = by === 0 ? 0 : clamp(state[part] + by, n);
    part === "cache" ? drawCache() : drawBatch();
  }

  function chooseRow(row) {
    state.row = clamp(row, LIVE.batch.rows.length);
    drawBatch();
  }

  function chooseQuery(query) {
    state.query = clamp(query, weights(0).length);
    drawWeights();
  }

  const options = { sentence: LIVE.sentences.map(({ text }) => text), layer: LIVE.n_layer, head: LIVE.n_head };
  for (const [name, values] of Object.entries(options)) {
    const texts = Array.isArray(values) ? values : Array.from({ length: values }, (_, i) => i);
    const select = $(`#${name}`);
    select.replaceChildren(...texts.map((text, i) => make("option", { value: i }, text)));
    select.value = state[name];
    select.addEventListener("change", () => {
      state[name] = Number(select.value);
      if (name === "sentence") Object.assign(state, { query: -1, cache: 0 });
      drawWeights();
      drawCache();
    });
  }
  $("#heat").addEventListener("click", event => {
    const line = event.target.closest("[data-query]");
    if (line) chooseQuery(Number(line.dataset.query));
  });
  document.addEventListener("click", event => {
    const button = event.target.closest("button[data-go], button[data-row]");
    if (!button) return;
    if (button.dataset.row) chooseRow(Number(button.dataset.row));
    else go(button.closest("section").id, Number(button.dataset.go));
  });
  document.addEventListener("keydown", event => {
    const part = event.target.closest("section")?.id, by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 };
    if (!part || !(event.key in by)) return;
    const sideways = /Left|Right/.test(event.key);
    if (part === "weights" && !sideways) chooseQuery(state.query + by[event.key]);
    else if (part === "batch" && !sideways) chooseRow(state.row + by[event.key]);
    else if (part !== "weights" && sideways) go(part, by[event.key]);
    else return;
    event.preventDefault();
  });
  drawWeights();
  drawCache();
  drawBatch();
}

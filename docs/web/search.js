// Searches SEARCH_INDEX, a list of [address, page, heading, text], for sections that have all words of a query.
"use strict";
{
  const input = document.querySelector("#search input"), results = document.querySelector("#results");

  function find(query) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return [];
    const found = [];
    for (const [address, page, heading, text] of SEARCH_INDEX) {
      const name = `${page} ${heading}`.toLowerCase(), body = text.toLowerCase();
      if (!words.every(word => name.includes(word) || body.includes(word))) continue;
      const named = words.filter(word => heading.toLowerCase().includes(word)).length;
      const at = Math.max(0, body.indexOf(words[0]) - 40);
      found.push({ address, page, heading, named, excerpt: text.slice(at, at + 140) });
    }
    return found.sort((a, b) => b.named - a.named).slice(0, 20); // a stable sort: pages stay in their order
  }

  function show() {
    const found = find(input.value);
    results.replaceChildren(...found.map(({ address, page, heading, excerpt }) => {
      const item = document.createElement("li"), link = document.createElement("a"), text = document.createElement("p");
      link.href = ROOT + address;
      link.textContent = heading === page ? page : `${page} › ${heading}`;
      text.textContent = excerpt;
      link.append(text);
      item.append(link);
      return item;
    }));
    if (!found.length && input.value.trim()) {
      const item = document.createElement("li");
      item.textContent = "Nothing has all these words.";
      results.append(item);
    }
    results.hidden = !input.value.trim();
  }

  input.addEventListener("input", show);
  document.addEventListener("keydown", event => {
    const links = [...results.querySelectorAll("a")], at = links.indexOf(document.activeElement);
    const typing = event.target.matches("input, select, textarea");
    if (event.key === "/" && !typing) input.focus();
    else if (event.key === "Escape" && !results.hidden) { results.hidden = true; input.value = ""; }
    else if (event.key === "Enter" && event.target === input && links.length) links[0].click();
    else if (event.key === "ArrowDown" && (event.target === input || at >= 0)) links[at + 1]?.focus();
    else if (event.key === "ArrowUp" && at >= 0) (links[at - 1] ?? input).focus();
    else return;
    event.preventDefault();
  });
  document.addEventListener("click", event => {
    if (!event.target.closest("#search") || event.target.closest("#results a")) results.hidden = true;
  });
}

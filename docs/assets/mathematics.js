// Typesets formulas where a page has any; KaTeX lies beside this file, so that nothing is asked of the network.
(() => {
  const home = document.currentScript.src;
  const add = (tag, attributes) => new Promise((done, failed) => {
    const element = Object.assign(document.createElement(tag), attributes, { onload: done, onerror: failed });
    document.head.append(element);
  });
  document.addEventListener("DOMContentLoaded", async () => {
    const formulas = document.querySelectorAll(".arithmatex");
    if (formulas.length === 0) return;
    add("link", { rel: "stylesheet", href: new URL("katex/katex.min.css", home).href });
    await add("script", { src: new URL("katex/katex.min.js", home).href });
    for (const formula of formulas) {
      const source = formula.textContent.trim().replace(/^\\[([]|\\[)\]]$/g, "");
      katex.render(source, formula, { displayMode: formula.tagName === "DIV", throwOnError: true });
    }
  });
})();

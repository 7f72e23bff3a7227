"use strict";
(() => {
  const root = document.documentElement;

  // Light or dark: what was chosen here goes before what the system prefers.
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  document.getElementById("theme").addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; });

  // One slider moves all heat-maps: the same share of the way from noise to image.
  const slider = document.getElementById("level");
  const show = () => {
    const words = [];
    for (const viewer of document.querySelectorAll(".viewer")) {
      const frames = viewer.querySelectorAll(".frame");
      const level = Math.round(slider.value / 1000 * (frames.length - 1));
      frames.forEach((frame, number) => frame.classList.toggle("on", number === level));
      const { sigma, band } = frames[level].dataset;
      words.push([sigma, band === "1"]);
    }
    const text = words.length && `noise level σ = ${words[0][0]}` + (words.some(([, band]) => band) ? ", conditions matter" : "");
    document.getElementById("level-words").textContent = text || "";
    slider.setAttribute("aria-valuetext", text || "");
  };
  if (slider) { slider.addEventListener("input", show); show(); }

  // Tables copy as LaTeX and CSV.
  const copied = async (text) => {
    try { await navigator.clipboard.writeText(text); return; } catch { /* not allowed here: the old way */ }
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  };
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      await copied(button.closest(".sheet").dataset[button.dataset.copy]);
      const before = button.textContent;
      button.textContent = "copied";
      button.classList.add("done");
      setTimeout(() => { button.textContent = before; button.classList.remove("done"); }, 1400);
    });
  }

  // Paper shows folded tables too: they open for printing and close again.
  let opened = [];
  addEventListener("beforeprint", () => { opened = [...document.querySelectorAll("details:not([open]):not(.more-images)")]; opened.forEach((one) => { one.open = true; }); });
  addEventListener("afterprint", () => { opened.forEach((one) => { one.open = false; }); });
})();

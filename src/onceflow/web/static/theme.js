// Light, dark, or as the system has it. Loaded before the page is drawn, so that it does not flash.
"use strict";
(() => {
  const themes = ["system", "light", "dark"];
  const read = () => {
    try {
      return localStorage.getItem("onceflow-theme") || "system";
    } catch {
      return "system";
    }
  };
  const apply = (theme) => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  };
  apply(read());
  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    let theme = read();
    const show = () => {
      button.textContent = `Theme: ${theme}`;
      apply(theme);
    };
    button.hidden = false;
    button.addEventListener("click", () => {
      theme = themes[(themes.indexOf(theme) + 1) % themes.length];
      try {
        localStorage.setItem("onceflow-theme", theme);
      } catch {
        // Not kept, but in force.
      }
      show();
    });
    show();
  });
})();

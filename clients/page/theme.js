/** Light or dark: as the system is, or as was chosen here. */

import { byId } from "./dom.js";

const KEY = "turnkeeper:theme";

/** Follow the choice of the theme, this page's and every later one's. */
export function followTheme() {
  const choice = byId("theme", HTMLSelectElement);
  choice.value = localStorage.getItem(KEY) ?? "";
  apply(choice.value);
  choice.addEventListener("change", () => {
    localStorage.setItem(KEY, choice.value);
    apply(choice.value);
  });
}

/** @param {string} theme */
function apply(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

/** Light or dark: as the system is, or as was chosen here. */

import { byId } from "./dom.js";

const KEY = "turnkeeper:theme";

/** Follow the choice of the theme, this page's and every later one's. */
export function followTheme() {
  const choice = byId("theme", HTMLSelectElement);
  const apply = () => void (document.documentElement.style.colorScheme = choice.value);
  choice.value = localStorage.getItem(KEY) ?? "";
  apply();
  choice.addEventListener("change", () => {
    localStorage.setItem(KEY, choice.value);
    apply();
  });
}

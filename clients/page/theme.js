/** The page's theme: the system's, light or dark. */

import { byId } from "./dom.js";

const KEY = "turnkeeper:theme";

/** Apply the chosen theme, and store every later choice. */
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

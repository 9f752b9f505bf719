/**
 * Colours strings, comments, numbers and keywords in code. It knows no grammar, only what most languages share; a mistake
 * changes a colour, never the text.
 */

/** Longer code has no colours: for a string without an end, the pattern's time is quadratic. */
const MAX_CHARS = 10_000;

const WORDS = new Set(
  (
    "abstract and as assert async await bool boolean break case catch char class const continue debugger declare def " +
    "default defer del delete do double elif else end enum except export extends extern false False final finally fn " +
    "float for foreach from func function global go goto if impl implements import in include instanceof int " +
    "interface is lambda let long loop match mod module move mut namespace new nil None nonlocal not null of or " +
    "package pass private protected pub public raise ref require return select self Self static string struct super " +
    "switch template this throw trait true True try type typedef typeof undefined union unsafe use using var virtual " +
    "void volatile when where while with yield " +
    "SELECT FROM WHERE INSERT INTO UPDATE DELETE JOIN LEFT INNER ON GROUP ORDER BY LIMIT AND OR NOT NULL CREATE " +
    "TABLE VALUES SET AS"
  ).split(" "),
);

const HASH_COMMENTS = /^(py|python|sh|bash|shell|zsh|console|rb|ruby|ya?ml|toml|r|perl|makefile|dockerfile|conf|ini)$/i;
const DASH_COMMENTS = /^(sql|lua|haskell|hs|elm|ada)$/i;
const NO_CODE = /^(|text|txt|plain|plaintext|output|log|md|markdown|csv|diff|math)$/i;

const LONG_STRING = String.raw`"""[\s\S]*?"""|'''[\s\S]*?'''|\x60(?:\\[\s\S]|[^\x60\\])*\x60`;
const STRING = String.raw`${LONG_STRING}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'`;
const NUMBER = String.raw`\b(?:0x[\da-fA-F]+|\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?)\b`;
const WORD = String.raw`[A-Za-z_]\w*`;

/** Wrap coloured words in spans, in place. @param {HTMLElement} code @param {string} language */
export function highlight(code, language) {
  const text = code.textContent ?? "";
  if (NO_CODE.test(language) || text.length > MAX_CHARS) return;
  const pieces = document.createDocumentFragment();
  let end = 0;
  for (const match of text.matchAll(patternFor(language))) {
    const kind = kindOf(/** @type {Object<string, string>} */ (match.groups));
    if (!kind) continue;
    const span = document.createElement("span");
    span.className = `code-${kind}`;
    span.textContent = match[0];
    pieces.append(text.slice(end, match.index), span);
    end = match.index + match[0].length;
  }
  pieces.append(text.slice(end));
  code.replaceChildren(pieces);
}

/** @param {string} language @returns {RegExp} */
function patternFor(language) {
  const line = HASH_COMMENTS.test(language) ? "#" : DASH_COMMENTS.test(language) ? "--" : "//";
  const comment = String.raw`(?<![\w:])${line}[^\n]*|/\*[\s\S]*?\*/|<!--[\s\S]*?-->`;
  return new RegExp(`(?<string>${STRING})|(?<comment>${comment})|(?<number>${NUMBER})|(?<word>${WORD})`, "g");
}

/** @param {Object<string, string | undefined>} groups */
function kindOf({ string, comment, number, word }) {
  if (string !== undefined) return "string";
  if (comment !== undefined) return "comment";
  if (number !== undefined) return "number";
  return word !== undefined && WORDS.has(word) ? "word" : null;
}

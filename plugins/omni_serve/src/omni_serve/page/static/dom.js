// What every part of the page makes elements with.

const SVG = "http://www.w3.org/2000/svg";

// Paths in a box of 20 x 20, drawn as lines.
const ICONS = {
  check: "M4 10.500l4 4 8-9",
  close: "M5 5l10 10M15 5L5 15",
  copy: "M7.500 7.500h9v9h-9zM12.500 7.500v-4h-9v9h4",
  download: "M10 3v10M5.500 9l4.500 4.500L14.500 9M4 17h12",
  edit: "M3.500 16.500l.8-3.700 8.700-8.700 2.900 2.900-8.700 8.700z",
  menu: "M2.500 3.500h15v13h-15zM7.500 3.500v13",
  mic: "M10 2.500a2.500 2.500 0 0 1 2.500 2.500v4a2.500 2.500 0 0 1-5 0V5A2.500 2.500 0 0 1 10 2.500zM4.500 9a5.500 5.500 0 0 0 11 0M10 14.500V18",
  more: "M4.500 10h.01M10 10h.01M15.500 10h.01",
  new: "M16 9.500v7H3.500V4h7M8 12l.5-2.500L15.500 2.500 17.500 4.500l-7 7z",
  pipeline: "M7 2.500h6v4H7zM2.500 13.500h5.500v4H2.500zM12 13.500h5.500v4H12zM10 6.500v3.500M5.200 13.500V10h9.600v3.500",
  play: "M6.500 4v12l9.500-6z",
  plus: "M10 4v12M4 10h12",
  retry: "M16 10a6 6 0 1 1-1.800-4.300L16 7.500M16 3.500v4h-4",
  send: "M10 16.500V4M4.500 9.500L10 4l5.500 5.500",
  settings: "M3 6h6M13.500 6H17M11.200 3.700v4.600M3 14h3.500M11 14h6M8.700 11.700v4.600",
  sound: "M3.500 7.800v4.400h2.800L10.500 16V4L6.300 7.800zM13.500 7.300a4 4 0 0 1 0 5.400M15.800 5a7 7 0 0 1 0 10",
  silent: "M3.500 7.800v4.400h2.800L10.500 16V4L6.300 7.800zM13.500 8l4 4M17.500 8l-4 4",
  stop: "M6 6h8v8H6z",
  theme: "M16.500 11.500A7 7 0 0 1 8.500 3.500a7 7 0 1 0 8 8z",
  wave: "M3.500 8.500v3M7.800 5.500v9M12.200 3v14M16.500 7.500v5",
};

export const $ = (id) => document.getElementById(id);

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function icon(name) {
  return svg("svg", { viewBox: "0 0 20 20", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
}

// Gives a button its picture, its name for those who do not see it, and whether it is pressed.
export function dress(button, name, label, pressed = null) {
  button.querySelector("svg")?.remove();
  button.prepend(icon(name));
  if (label) {
    button.title = label;
    button.setAttribute("aria-label", label);
  }
  if (pressed !== null) button.setAttribute("aria-pressed", String(pressed));
  return button;
}

export function iconButton(name, label, act) {
  const button = dress(element("button", { type: "button", className: "quiet icon" }), name, label);
  button.addEventListener("click", () => act(button));
  return button;
}

// Tells those who listen to the page something that is seen elsewhere on it.
export function announce(text) {
  $("announced").textContent = text;
}

// Shows something for some seconds.
export function notice(text) {
  const place = $("notice");
  clearTimeout(notice.timer);
  place.textContent = text;
  place.hidden = false;
  notice.timer = setTimeout(() => (place.hidden = true), 7000);
}

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without https a page may only copy what is selected.
    const field = element("textarea", { value: text, className: "hidden" });
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
}

// Says on a button for a moment that it is done.
export function done(button, name, label) {
  dress(button, "check", "Done");
  setTimeout(() => dress(button, name, label), 1500);
}

export function download(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// Returns a file's name made of a text.
export function fileName(text, ending) {
  const name = text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 40);
  return `${name || "answer"}.${ending}`;
}

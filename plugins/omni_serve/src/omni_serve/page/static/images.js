// Pictures of a pipeline that answers with images: asks for them, with previews, and shows them as they come.

import { bytesOf, imageEvents } from "./api.js";
import { element } from "./messages.js";

export const EXAMPLES = ["a red circle left of a blue square", "a green star", "a yellow triangle above a purple circle"];

const PREVIEWS = 3;

// Returns whether a model answers with images.
export function draws(model) {
  return model.capabilities.outputs.includes("image");
}

// Asks for a picture of a prompt, or of attached images and an instruction, and shows it in an answer. `edit` is called
// with the picture, as a file, when it is to be changed.
export async function draw({ model, text, media, answer, signal, edit }) {
  const { image_parameters: parameters, image_edits: edits } = model.capabilities;
  const most = parameters.find((each) => each.name === "partial_images")?.maximum ?? 0;
  const asked = { model: model.id, prompt: text, stream: true, partial_images: Math.min(PREVIEWS, most) };
  const image = element("img", { className: "picture", alt: text });
  const figure = element("figure", { hidden: true }, image);
  answer.message.querySelector(".words").after(figure);
  let last = null;
  for await (const event of imageEvents(asked, media.map((each) => each.blob), signal)) {
    last = event;
    image.src = `data:image/${event.output_format};base64,${event.b64_json}`;
    figure.hidden = false;
    figure.classList.toggle("preview", event.type.endsWith("partial_image"));
    if (event.partial_image_index !== undefined) answer.note(`preview ${event.partial_image_index + 1}`);
    await image.decode();
    answer.show();
  }
  if (!last?.type.endsWith("completed")) throw new Error("The answer ended without an image.");
  answer.note([last.size.replace("x", " x "), ...(last.seed === undefined ? [] : [`seed ${last.seed}`])].join(", "));
  if (!edits) return;
  const button = element("button", { type: "button", className: "example", textContent: "Edit", title: "Attach this picture" });
  button.addEventListener("click", () => edit(new Blob([bytesOf(last.b64_json)], { type: "image/png" }), "picture.png"));
  figure.append(button);
  answer.show();
}

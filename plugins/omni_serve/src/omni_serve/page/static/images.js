// Pictures of a pipeline that answers with images: asks for them, with previews, and shows them as they come.

import { bytesOf, imageEvents } from "./api.js";

export const EXAMPLES = ["a red circle left of a blue square", "a green star", "a yellow triangle above a purple circle"];

const PREVIEWS = 3;

// Asks for a picture of a prompt, or of attached images and an instruction, and shows it in an answer.
export async function draw({ model, asked, answer, view, settings, signal }) {
  const most = model.capabilities.image_parameters.find((each) => each.name === "partial_images")?.maximum ?? 0;
  const body = { model: model.id, prompt: asked.text, stream: true, partial_images: Math.min(PREVIEWS, most), ...settings.parameters };
  let last = null;
  for await (const event of imageEvents(body, asked.media.map((each) => each.blob), signal)) {
    last = event;
    const blob = new Blob([bytesOf(event.b64_json)], { type: `image/${event.output_format}` });
    const early = event.type.endsWith("partial_image");
    if (early) view.note(`preview ${event.partial_image_index + 1}`);
    else answer.picture = blob;
    await view.picture(blob, asked.text, early);
  }
  if (!last?.type.endsWith("completed")) throw new Error("The answer ended without an image.");
  view.note([last.size.replace("x", " x "), ...(last.seed === undefined ? [] : [`seed ${last.seed}`])].join(", "));
}
